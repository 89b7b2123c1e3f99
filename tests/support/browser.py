"""A browser for the tests of a module; they are skipped where there is none."""

import pytest
from support.chromium import chromium, where


@pytest.fixture(scope="module")
def browser():
    pytest.importorskip("playwright.sync_api", reason="playwright is in the `test-all` extra")
    if where() is None:
        pytest.skip("there is no chromium: apt-get install --no-install-recommends chromium")
    with chromium() as browser:
        yield browser
