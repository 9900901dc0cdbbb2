"""Serve a model and a gallery over HTTP: an image file is the body of a request, the answer is JSON.

    GET  /               what is served: model, gallery, certificates
    POST /embed          direction (M,) and uncertainty of an image
    POST /search         nearest gallery images, P(right), and whether the answer is withheld; k, risk, confidence, ...
    POST /images         add an image to the gallery (only where the service may write); path, class_name
    GET  /openapi.json   the same for programs

The gallery is read again after another process has changed it, its certificates at every request. The service embeds
one image at a time; other requests wait.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import uvicorn
from fastapi import Depends, FastAPI, Query, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.middleware.trustedhost import TrustedHostMiddleware

from probmetric import __version__
from probmetric.data.manifest import DataError
from probmetric.errors import ProbMetricError, ServingError
from probmetric.io import FileError
from probmetric.serving import gallery_files, gallery_trust
from probmetric.serving.gallery import Gallery
from probmetric.serving.model import Model

log = logging.getLogger(__name__)
LARGEST_IMAGE = 64 * 2**20
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class NoParameters(BaseModel, extra="forbid"):
    """No parameters: any parameter is refused, so that a misspelt `risk` cannot pass unnoticed."""


class SearchParameters(BaseModel, extra="forbid"):
    """Parameters of a search, those of `Model.search`."""

    k: int = 5
    risk: float | None = None
    confidence: float = 0.9
    strangers: float = 0.0
    any_image: bool = False


class ImageParameters(BaseModel, extra="forbid"):
    """Name and class of an image to be added."""

    path: str
    class_name: str = ""


class Service:
    """A model and a stored gallery, used by one request at a time."""

    def __init__(self, model: Model, folder: Path, *, writable: bool = False) -> None:
        """Open the gallery in `folder`, which `model` embedded; `writable`: images may be added.

        Raises:
            ServingError: the gallery is of another model.
            FileError: there is no gallery, or it is damaged.
        """
        self.model, self.folder, self.writable = model, folder, writable
        self._state, self._gallery = gallery_files.state_on_disk(folder), Gallery.open(folder)
        self._gallery.check_model(model)
        self._lock = threading.Lock()

    def about(self) -> dict[str, Any]:
        """Return model, gallery and certificates."""
        with self._lock:
            gallery = self.gallery()
            promises = [{"risk": each.risk, "confidence": each.confidence} for each in gallery.valid]
            facts = {"images": len(gallery), "dimensions": gallery.dim, "digest": gallery.digest}
        model = {"name": self.model.name, "digest": self.model.digest}
        return {"probmetric": __version__, "model": model, "gallery": facts, "certificates": promises}

    def gallery(self) -> Gallery:
        """Return the gallery as it is on disk now."""
        state = gallery_files.state_on_disk(self.folder)
        if state != self._state:
            self._gallery, self._state = Gallery.open(self.folder), state
        self._gallery.certificates = gallery_trust.read_certificates(self.folder)
        return self._gallery

    def embed(self, image: bytes) -> dict[str, Any]:
        """Return direction and uncertainty of an image file."""
        with self._lock:
            batch = self.model.embed([image])
        return {"mean": batch.mean[0].tolist(), "uncertainty": float(batch.uncertainty[0])}

    def search(self, image: bytes, k: int, risk: float | None, **rules: Any) -> dict[str, Any]:
        """Return the answer to an image file; arguments as for `Model.search`."""
        with self._lock:
            return asdict(self.model.search(self.gallery(), [image], k=k, risk=risk, **rules)[0])

    def add(self, image: bytes, path: str, class_name: str) -> dict[str, Any]:
        """Add an image file to the stored gallery under the name `path`.

        Raises:
            ServingError: the service may not write, or the image has no name, or no class where all others have one.
            FileError: the gallery no longer exists; no new one is made.
        """
        if not self.writable:
            raise ServingError("this service only reads; start it with --writable to add images.")
        if not path.strip():
            raise ServingError("path is empty; name the image.")
        class_name = class_name.strip()
        with self._lock, Gallery.changing(self.folder, new=False) as gallery:
            if not class_name and gallery.labelled:
                raise ServingError("class_name is empty; without it no answer of the gallery could be certified.")
            gallery.add(self.model, [image], paths=[path], class_names=[class_name])
        return {"images": len(gallery)}


def application(service: Service, host: str = LOOPBACK[0]) -> FastAPI:
    """Return the web application of a service that listens at `host`; pages of other hosts cannot use a local one."""
    once = [Depends(_check_once)]
    app = FastAPI(title="ProbMetric", version=__version__, docs_url=None, redoc_url=None, dependencies=once)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*LOOPBACK, "[::1]"] if host in LOOPBACK else ["*"])
    app.add_exception_handler(ProbMetricError, _said)

    @app.get("/")
    def about() -> dict[str, Any]:
        """Say what is served."""
        return service.about()

    @app.post("/embed")
    async def embed(request: Request, _: Annotated[NoParameters, Query()]) -> dict[str, Any]:
        """Embed the image file in the body."""
        return await _answered(request, service.embed)

    @app.post("/search")
    async def search(request: Request, parameters: Annotated[SearchParameters, Query()]) -> dict[str, Any]:
        """Search the gallery for the image file in the body."""
        return await _answered(request, lambda image: service.search(image, **parameters.model_dump()))

    @app.post("/images")
    async def add(request: Request, parameters: Annotated[ImageParameters, Query()]) -> dict[str, Any]:
        """Add the image file in the body to the gallery."""
        return await _answered(request, lambda image: service.add(image, parameters.path, parameters.class_name))

    return app


async def _check_once(request: Request) -> None:
    """Raise `DataError` if a parameter occurs twice, since only its last value would count."""
    for name in request.query_params:
        if (count := len(request.query_params.getlist(name))) > 1:
            raise DataError(f"the parameter {name} comes {count} times; give it once.")


async def _answered(request: Request, answer: Callable[[bytes], dict[str, Any]]) -> dict[str, Any]:
    """Return the result of `answer`, run in a thread, for the image in the body.

    Raises:
        DataError: there is no body, or it is too large.
    """
    image = bytearray()
    async for part in request.stream():
        image += part
        if len(image) > LARGEST_IMAGE:
            raise DataError(f"the image is larger than {LARGEST_IMAGE >> 20} MiB.")
    if not image:
        raise DataError("the body is empty; send the bytes of an image file: curl --data-binary @photo.jpg ...")
    return await run_in_threadpool(answer, bytes(image))


async def _said(request: Request, error: Exception) -> JSONResponse:
    of_the_service = isinstance(error, FileError) and not isinstance(error, DataError)
    return JSONResponse({"error": str(error)}, status_code=500 if of_the_service else 400)


def run_service(model: Model, folder: Path, *, host: str, port: int, writable: bool) -> None:
    """Serve a model and the gallery in `folder` until the process is interrupted.

    Raises:
        ServingError: the service cannot listen at `host` and `port`, for example because another program does.
    """
    service = Service(model, folder, writable=writable)
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ServingError(
            f"{host}:{port} cannot be had ({error.strerror}); choose another --port, or --host."
        ) from error
    log.info("http://%s:%d/ answers questions to %s (%s)", host, port, folder, "writable" if writable else "read only")
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(uvicorn.Config(application(service, host), log_level="warning")).run([listening])
