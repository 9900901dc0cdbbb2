"""Take the README's picture of a report's page: the first answer in words, without the photographs.

    python examples/page_picture.py reports/birds/index.html

It needs Chromium with its driver, and selenium (extra `dev`).
"""

from __future__ import annotations

import argparse
import base64
import shutil
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

OUTPUT = Path("docs/images/page.png")
WIDTH, MARGIN = 1000, 8
HIDE = "document.querySelectorAll('.pictures, nav').forEach((part) => { part.style.display = 'none'; });"
BOTTOM = "return Math.ceil(document.querySelector('.card').getBoundingClientRect().bottom);"


def take(page: Path, output: Path) -> Path:
    """Write the picture of `page` to `output`; return it."""
    options = webdriver.ChromeOptions()
    for flag in ("--headless", "--no-sandbox", "--hide-scrollbars"):
        options.add_argument(flag)
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    with webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver"))) as browser:
        browser.set_window_size(WIDTH, 2000)
        browser.get(page.resolve().as_uri())
        browser.execute_script(HIDE)
        clip = {"x": 0, "y": 0, "width": WIDTH, "height": browser.execute_script(BOTTOM) + MARGIN, "scale": 1}
        shown = {"width": WIDTH, "height": 2000, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", shown)
        taken = browser.execute_cdp_cmd("Page.captureScreenshot", {"clip": clip})
    output.write_bytes(base64.b64decode(taken["data"]))
    return output


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    print(take(parser.parse_args().page, OUTPUT))
