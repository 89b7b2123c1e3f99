"""A page whose texts cannot be read for a while."""

import errno

import pytest

pytest.importorskip("starlette", reason="the dashboard needs the `serve` extra")

from dipaco.dashboard import watcher as watcher_module
from tests.dashboard.conftest import served


def test_texts_that_cannot_be_read_leave_what_was_found_and_are_asked_for_now_and_then(
    browser, tiny, monkeypatch
):
    asked = []

    def failing(run):
        raise OSError(errno.EIO, "Input/output error")

    def renew(page):
        with page.expect_response("**/texts"):
            page.evaluate("run.textsVersion = undefined; renewTexts()")

    with served(tiny.folder) as (url, watcher):
        page = browser.new_page()
        page.clock.install()
        page.on("request", lambda of: asked.append(of.url) if of.url == f"{url}texts" else None)
        page.goto(url)
        page.locator(".cell").first.wait_for()
        with page.expect_response("**/texts"):
            page.locator("#where").scroll_into_view_if_needed()
        page.fill("#words", "7")
        page.locator("#seek button").click()
        found, problem = page.locator(".document[data-document='7']"), page.locator("#no-texts")
        found.wait_for()

        with monkeypatch.context() as patch:
            patch.setattr(watcher_module, "Texts", failing)
            watcher._table_version = None
            renew(page)
            problem.get_by_text("Input/output error").wait_for()
            before = len(asked)
            for _ in range(3):  # as much comes of the run
                page.evaluate("renewTexts()")
                page.wait_for_timeout(20)
            assert len(asked) == before
            assert found.is_visible()

        with page.expect_response("**/texts"):
            page.clock.fast_forward("01:00")
        problem.get_by_text("Input/output error").wait_for(state="detached")
        assert found.is_visible()
        page.close()
