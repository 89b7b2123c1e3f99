"""The page at / in a browser: a prompt highlights its path, and the text streams in."""

import shutil

import pytest

pytest.importorskip("starlette", reason="HTTP needs the `serve` extra")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is in the `test` extra")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]

pytestmark = pytest.mark.skipif(
    CHROMIUM is None,
    reason="there is no chromium: apt-get install --no-install-recommends chromium",
)


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(params=["light", "dark"])
def page(browser, url, request):
    page = browser.new_page(color_scheme=request.param)
    errors = []
    page.on("pageerror", lambda error: errors.append(error))
    page.on("console", lambda entry: errors.append(entry.text) if entry.type == "error" else None)
    page.goto(url)
    yield page
    assert not errors
    page.close()


def lit(page):
    return page.locator(".cell.on").evaluate_all("cells => cells.map(c => c.dataset.module)")


def test_typing_highlights_the_path_and_continuing_streams_the_text(page, service, prompts):
    served = service.releases.current
    page.locator(".cell.on").first.wait_for()
    assert page.locator(".cell").count() == 4
    seen = set()
    for prompt in prompts[:4]:
        (ids,) = service.tokenizer.encode([prompt])
        choice = service.route(served, ids)
        page.fill("#prompt", prompt)
        page.locator("#path b", has_text=f"path {choice.path}").wait_for()
        assert lit(page) == list(choice.modules)
        assert page.locator("#scores li").first.inner_text().startswith(f"path {choice.path}")
        seen.add(choice.path)
    assert len(seen) > 1

    page.fill("#tokens", "12")
    page.fill("#temperature", "0")
    page.click("#go")
    page.locator("#count", has_text="12").wait_for()
    page.locator("#text:not(.busy)").wait_for()
    text = page.locator("#text").text_content()
    assert text.startswith(prompts[3])
    assert len(text) > len(prompts[3])
    assert page.locator("#end").text_content() == "length"
    assert int(page.locator("#rate").text_content()) > 0
    assert page.locator("#problem").text_content() == ""


def test_the_page_offers_beginnings_of_the_runs_own_text(browser, url, service, monkeypatch):
    page = browser.new_page()
    page.goto(url)
    page.locator(".chips button").nth(4).wait_for()
    assert page.locator(".chips button").all_text_contents() == service.examples
    assert page.input_value("#prompt") == service.examples[0]
    page.locator(".chips button").nth(1).click()
    assert page.input_value("#prompt") == service.examples[1]

    monkeypatch.setattr(service, "examples", [])
    page.reload()
    page.locator(".cell").first.wait_for()
    assert page.locator(".chips button").count() == 0
    assert page.input_value("#prompt") == ""
    page.close()


def test_an_error_is_shown_on_the_page(browser, url):
    page = browser.new_page()
    page.goto(url)
    page.locator(".cell.on").first.wait_for()
    page.fill("#prompt", "too long " * 200)
    page.locator("#problem", has_text="the context holds 64").wait_for()
    page.close()
