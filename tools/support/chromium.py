"""Chromium without a window, for pages of dipaco: `apt-get install chromium`, the extra `test`."""

import contextlib
import shutil
from collections.abc import Generator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser

FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]


def where() -> str | None:
    """The program's path, or None if it is not installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


@contextlib.contextmanager
def chromium() -> Generator["Browser"]:
    """A browser that is closed afterwards."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=where(), args=FLAGS)
        yield browser
        browser.close()
