"""What the papers' views have in common.

standard   the protocol of the proxy papers (non-isotropic proxies, NIR, potential field): random crop of 8-100 % of
           the area to 224, flip; evaluation 256 -> central 224
vmf        the vMF paper: area 16-100 %, colour jitter on birds and cars, square resizing on cars and products
lam        the Laplacian metric learner: as standard at 227 pixels (the code; the text says 224); street scenes are
           resized to 224 x 224 without crop or flip; CIFAR-10 and SVHN with ImageNet statistics and no augmentation
"""

from __future__ import annotations

from typing import Any

VMF_SCALE = (0.16, 1.0)
LAM_VIEW: dict[str, Any] = {"name": "photos", "size": 227, "resize": 256}
CIFAR_VIEW: dict[str, Any] = {"name": "small", "shift": 4, "padding": "reflect", "flip": True, "erase": 8}
IMAGENET_VIEW: dict[str, Any] = {"name": "small", "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
