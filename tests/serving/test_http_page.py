"""The page at / in a browser, wide and on a phone: a prompt highlights its path, the text streams
in beside that of another path or model, and an error is a sentence.
"""

import json

import pytest

from tests.support.serving_rig import route

pytest.importorskip("starlette", reason="HTTP needs the `serve` extra")

SIZES = {"wide": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}


@pytest.fixture(params=["wide-light", "phone-dark"])
def page(browser, url, request):
    size, scheme = request.param.split("-")
    page = browser.new_page(color_scheme=scheme, viewport=SIZES[size])
    errors = []
    page.on("pageerror", lambda error: errors.append(error))
    page.on("console", lambda entry: errors.append(entry.text) if entry.type == "error" else None)
    page.goto(url)
    page.locator(".cell.on").first.wait_for()
    yield page
    assert overflow(page) == 0
    assert not errors
    page.close()


def overflow(page):
    """Pixels by which the page is wider than its window."""
    return page.evaluate("document.documentElement.scrollWidth - innerWidth")


def lit(page, kind="on"):
    return page.locator(f".cell.{kind}").evaluate_all("cells => cells.map(c => c.dataset.module)")


def ask(page, tokens=12):
    """Continues the prompt greedily, and waits for all texts."""
    page.fill("#tokens", str(tokens))
    page.fill("#temperature", "0")
    page.click("#go")
    page.locator("#go", has_text="Continue").wait_for()  # "Stop" from the click on


def test_typing_highlights_the_path_and_continuing_streams_the_text(page, service, prompts):
    served = service.releases.current
    assert page.locator(".cell").count() == 4
    seen = set()
    for prompt in prompts[:4]:
        (ids,) = service.tokenizer.encode([prompt])
        choice = route(service, served, ids)
        page.fill("#prompt", prompt)
        page.locator("#paths b", has_text=f"path {choice.path}").wait_for()
        assert lit(page) == list(choice.modules)
        assert page.locator("#scores li").first.inner_text().startswith(f"path {choice.path}")
        seen.add(choice.path)
    assert len(seen) > 1

    ask(page)
    text = page.locator(".text").text_content()
    assert text.startswith(prompts[3])
    assert len(text) > len(prompts[3])
    assert page.locator(".count").text_content() == "12"
    assert page.locator(".end").text_content() == "the limit"
    assert int(page.locator(".rate").text_content()) > 0
    assert page.locator("#problem").text_content() == ""


def test_a_path_or_another_model_continues_beside_the_routers_choice(page, client, prompts):
    def text_of(**more):
        body = {"model": "toy", "prompt": prompts[0], "max_tokens": 12, "temperature": 0}
        return client.post("/v1/completions", json=body | more).json()["choices"][0]["text"]

    route = client.post("/v1/route", json={"prompt": prompts[0]}).json()
    other = (route["path"] + 1) % 4
    page.fill("#prompt", prompts[0])
    page.locator("#paths b", has_text=f"path {route['path']}").wait_for()
    page.get_by_label("compared with").select_option(f"path {other}")
    assert lit(page) == route["modules"]
    assert lit(page, "second") == client.get("/v1/paths").json()["data"][other]["modules"]
    ask(page)
    routed, second = page.locator(".text").all_text_contents()
    assert routed == prompts[0] + text_of()
    assert second == prompts[0] + text_of(path=other)

    page.get_by_label("continued by").select_option(f"path {other}")
    page.get_by_label("compared with").select_option("model toy/dense")
    titles = page.locator(".text-sheet h2").all_text_contents()
    assert titles == [f"path {other}", "toy/dense"]
    assert lit(page, "second") == []
    ask(page)
    assert page.locator(".text").all_text_contents() == [
        prompts[0] + text_of(path=other),
        prompts[0] + text_of(model="toy/dense"),
    ]
    page.get_by_label("compared with").select_option("nothing")
    assert page.locator(".text-sheet").count() == 1


def test_a_path_says_what_it_was_trained_on_and_a_short_prompt_is_a_guess(page, client):
    for card in client.get("/v1/paths").json()["data"]:
        page.get_by_label("continued by").select_option(f"path {card['path']}")
        told = page.locator("#paths .path").inner_text()
        assert f"trained on {card['documents']} documents" in told
        shown = page.locator(".domains li span:first-child").all_text_contents()
        assert shown == list(card["domains"])
    page.fill("#prompt", "ji")
    page.locator("#guess", has_text="A guess: the router has read 2 of the 32 tokens").wait_for()
    page.fill("#prompt", "jijiwi mo" * 6)
    page.locator("#guess", has_text="A guess").wait_for(state="detached")


def test_everything_can_be_done_by_keyboard(page, prompts):
    page.locator("#prompt").focus()
    page.keyboard.press("Control+a")
    page.keyboard.type(prompts[0])
    page.locator("#second-choice").focus()
    page.keyboard.press("End")  # the last model
    page.locator(".text-sheet").nth(1).wait_for()
    page.fill("#tokens", "3")
    page.locator("#prompt").focus()
    page.keyboard.press("Control+Enter")
    page.locator("#go", has_text="Continue").wait_for()
    page.locator(".count", has_text="3").nth(1).wait_for()
    unnamed = "e => e.filter(x => !x.labels.length && !x.hidden).map(x => x.id)"
    assert page.locator("input, select, textarea").evaluate_all(unnamed) == []


def test_a_stream_that_ends_in_an_error_shows_its_sentence(page, prompts):
    head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "toy"}
    choice = {"index": 0, "text": " so far", "finish_reason": None, "path": 0}
    begun = head | {"choices": [choice | {"logprobs": {"tokens": [" so", " far"]}}]}
    failed = {"error": {"message": "The server is stopping.", "type": "server_error"}}
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in (begun, failed))
    page.route(
        "**/v1/completions",
        lambda route: route.fulfill(body=body, content_type="text/event-stream"),
    )
    page.fill("#prompt", prompts[0])
    page.click("#go")
    page.locator(".problem", has_text="The server is stopping.").wait_for()
    assert page.locator(".text").text_content() == prompts[0] + " so far"
    assert page.locator(".end").text_content() == "error"
    assert page.locator("#go").text_content() == "Continue"


def test_sixteen_by_sixteen_modules_fit(page, client):
    models = client.get("/v1/models").json()
    card = models["data"][0]["dipaco"]
    for level in card["levels"]:
        level["modules"] = [f"{level['name']}/{number:04d}" for number in range(16)]
    data = [
        {"path": path, "modules": [f"early/{path // 16:04d}", f"late/{path % 16:04d}"]}
        | {"documents": 7, "share": 1 / 256, "domains": {f"domain {n}": 1 / 40 for n in range(40)}}
        for path in range(256)
    ]
    page.route("**/v1/models", lambda route: route.fulfill(json=models))
    page.route("**/v1/paths", lambda route: route.fulfill(json={"data": data}))
    page.reload()
    page.locator(".cell").nth(31).wait_for()
    page.get_by_label("continued by").select_option("path 255")
    assert lit(page) == ["early/0015", "late/0015"]
    assert overflow(page) == 0
    boxes = [cell.bounding_box() for cell in page.locator(".cell").all()]
    assert min(box["width"] for box in boxes) > 10
    assert max(box["x"] + box["width"] for box in boxes) <= page.viewport_size["width"]
    rows = {round(box["y"]) for box in boxes if box["width"] == boxes[0]["width"]}
    assert len(rows) <= 4, "sixteen of a level in one row, but for the one that is lit"


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
