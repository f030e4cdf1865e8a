"""Takes the picture of the report that the README shows: python -m docs.generate.report_picture OUT."""

from __future__ import annotations

import argparse
import io
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from docs.generate.markdown import ROOT

PICTURE = ROOT / "results" / "quick" / "report.png"
SIZE = 1300, 900
COLOURS = 128
"""Of the palette: the page has few, and a picture in a README should load at once."""
TIMEOUT_S = 60
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
)


def take_picture(report: Path, chromium: str, driver: str) -> Image.Image:
    """Return the first screen of a report, as Chromium shows it when its charts are drawn."""
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    with tempfile.TemporaryDirectory() as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={SIZE[0]},{SIZE[1]}"):
            options.add_argument(flag)
        with webdriver.Chrome(options=options, service=Service(driver)) as browser:
            viewport = {"width": SIZE[0], "height": SIZE[1], "deviceScaleFactor": 1, "mobile": False}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", viewport)
            browser.get(report.resolve().as_uri())
            charts = browser.find_elements(By.CSS_SELECTOR, "[data-chart='accuracy']")
            WebDriverWait(browser, TIMEOUT_S).until(
                lambda _: all(chart.find_elements(By.CSS_SELECTOR, "svg .mark-text") for chart in charts)
            )
            shot = browser.get_screenshot_as_png()
    return Image.open(io.BytesIO(shot)).convert("RGB")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the picture of a run's report."""
    parser = argparse.ArgumentParser(prog="python -m docs.generate.report_picture", description=main.__doc__)
    parser.add_argument("out", type=Path, metavar="OUT", help="The out folder of a run.")
    parser.add_argument("--picture", type=Path, default=PICTURE, help="The file to write.")
    chosen = parser.parse_args(arguments)
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and driver):
        parser.error("needs chromium and chromedriver (Debian: chromium, chromium-driver)")
    report = chosen.out / "report.html"
    if not report.is_file():
        parser.error(f"{report}: no such file")
    take_picture(report, chromium, driver).quantize(COLOURS).save(chosen.picture, optimize=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
