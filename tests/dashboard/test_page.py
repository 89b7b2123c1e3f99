"""The page in a browser: live and from a file, wide and on a phone, a run with faults, none."""

import json

import pytest

pytest.importorskip("starlette", reason="the dashboard needs the `serve` extra")

from support.made_up_run import make_run

from dipaco.control.planning.tasks import PRIORITY
from dipaco.dashboard.columns import packed, unpacked
from dipaco.dashboard.page import export, recording_and_texts
from dipaco.dashboard.page import page as whole_page
from dipaco.dashboard.watcher import Pace
from dipaco.runs.opening import reading
from dipaco.runs.reading.inspection import inspection_of
from dipaco.runs.reading.status import status_of
from tests.dashboard.conftest import HOST, served
from tests.dashboard.test_recording import arm_of

PHONE, WIDE = {"width": 390, "height": 800}, {"width": 1400, "height": 900}


@pytest.fixture
def opened(browser):
    """Opens an address; at the end nothing may have gone wrong on the page."""
    pages, errors = [], []

    def open_page(url, viewport=WIDE, scheme="light"):
        page = browser.new_page(viewport=viewport, color_scheme=scheme)
        page.on("pageerror", lambda error: errors.append(error))
        page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        page.goto(url)
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        if not page.is_closed():
            assert not page.evaluate("window.spoilt"), "a name of the run was read as HTML"
            page.close()
    assert not errors


@pytest.fixture(scope="module")
def file(tiny, tmp_path_factory):
    file = tmp_path_factory.mktemp("exported") / "page.html"
    with reading(tiny.folder) as run:
        export(run, file)
    return file


def cells(page, name):
    of = f"cells => Object.fromEntries(cells.map(c => [c.dataset.module, c.dataset.{name}]))"
    return page.locator(".cell").evaluate_all(of)


def until(page, expression):
    """Waits; Playwright's own wait evaluates text inside the page, which the page forbids."""
    for _ in range(3000):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(20)
    raise AssertionError(f"the page never came to `{expression}`")


def go_to(page, time):
    page.evaluate(f"goTo({time})")


@pytest.mark.parametrize(("viewport", "scheme"), [(WIDE, "light"), (PHONE, "dark")])
def test_a_file_from_disk_has_grid_curves_and_the_fate_of_a_document(
    opened, file, tiny, viewport, scheme
):
    page = opened(file.as_uri(), viewport, scheme)
    page.locator(".cell").first.wait_for()
    with reading(tiny.folder) as run:
        status, inspection = status_of(run, with_sizes=False), inspection_of(run)
    phases = {module: str(at["phase"]) for module, at in status["modules"].items()}
    assert cells(page, "phase") == phases
    norms = {name: f"{at['steps'][-1]['norm']:.3f}" for name, at in inspection["modules"].items()}
    assert cells(page, "norm") == norms
    assert page.locator("#grid polyline").count() == 4
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")

    ink = """name => {
      const canvas = document.querySelector(`#${name} canvas`);
      const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
      return new Set(new Uint32Array(data.buffer)).size }"""
    assert page.evaluate(ink, "plot") > 5  # drawn in several colours
    assert page.evaluate(ink, "waterfall") > 5
    report = json.loads((tiny.folder / "report.json").read_bytes())
    for row in report["rows"]:
        shown = page.locator(f"tr[data-row={row['name']}] td").all_text_contents()
        assert shown[1] == f"{row['perplexity']:.2f}"
        assert shown[-1] == page.evaluate(f"duration({row['link_seconds']['20']})")
    assert page.locator("#rows th").last.text_content() == "time at 20 Mbit/s"
    page.locator("#against button", has_text="time at 20 Mbit/s").click()
    assert page.evaluate("curves.plotted.lines.flatMap(line => line.points).every(Boolean)")
    inks = page.evaluate(f"{json.dumps(list(PRIORITY))}.map(kindColour)")
    assert len({*inks, page.evaluate("colour('--bad')")}) == len(PRIORITY) + 1

    path = inspection["paths"][1]
    for domain, count in path["domains"].items():
        cell = page.locator(f"tr[data-domain='{domain}'] td[data-path='1']")
        assert cell.get_attribute("data-count") == str(count)

    page.fill("#words", "7")
    page.locator("#seek button").click()
    page.locator(".document[data-document='7']").wait_for()
    text = page.locator(".document blockquote").text_content()
    assert "domain" in page.locator(".document").text_content()
    page.fill("#words", text[:12].upper())
    page.locator("#seek button").click()
    page.locator(".hits button", has_text="7:").first.click()
    page.locator(".document[data-document='7']").wait_for()
    page.fill("#words", "999999")
    page.locator("#seek button").click()
    page.locator("#found", has_text="no document 999999").wait_for()


def test_at_an_earlier_moment_all_is_as_it_was(opened, file, recording):
    page = opened(file.as_uri())
    page.locator(".cell").first.wait_for()
    arm = arm_of(recording)
    first = float(arm["step_times"][0].max())
    go_to(page, first + 1e-4)
    assert set(cells(page, "phase").values()) == {"1"}
    norms = dict(zip(arm["modules"], (f"{norm:.3f}" for norm in arm["norms"][0]), strict=True))
    assert cells(page, "norm") == norms
    go_to(page, float(arm["train_times"][0].min()) - 1e-3)
    assert set(cells(page, "phase").values()) == {"0"}
    assert set(cells(page, "norm").values()) == {"\u2013"}
    page.locator("#now").click()
    assert set(cells(page, "phase").values()) == {"2"}
    page.keyboard.press("Home")
    assert page.locator("#where-when").text_content() == "Nothing has been routed yet."
    page.keyboard.press("End")
    page.select_option("#speed", "10")
    page.locator("#play").click()
    page.locator("#play", has_text="❚❚").wait_for()
    page.locator("#play").click()
    assert float(page.locator("#time").input_value()) < recording["now"]


def test_a_module_and_a_path_open_and_light_up(opened, file, recording):
    page = opened(file.as_uri())
    module = page.locator(".cell").nth(1)
    module.hover()
    assert page.locator("#grid polyline.on").count() == 2
    module.focus()
    page.keyboard.press("Enter")
    assert page.locator("#detail h3").first.text_content() == arm_of(recording)["modules"][1]
    assert module.get_attribute("aria-pressed") == "true"
    page.locator("#detail .bars button").first.click()
    assert page.locator("#detail h3").first.text_content().startswith("path ")
    for control in ("button", "input", "select"):
        for each in page.locator(f"{control}:visible").all():
            named = each.get_attribute("aria-label") or each.text_content() or ""
            assert named.strip() or each.get_attribute("id") == "words", each


def press(page, selector):
    """As a finger does: the page is drawn some times before it is lifted again."""
    where = """e => {
      e.scrollIntoView({block: 'center'});
      const box = e.getBoundingClientRect();
      return [box.x + box.width / 2, box.y + box.height / 2] }"""
    page.mouse.move(*page.locator(selector).first.evaluate(where))
    page.mouse.down()
    page.wait_for_timeout(80)
    page.mouse.up()


def test_what_is_pressed_while_it_plays_takes_and_keeps_the_focus(opened, file):
    page = opened(file.as_uri())
    page.locator("#paths button").first.wait_for()
    page.select_option("#speed", "120")
    page.locator("#play").click()
    for name in ("losses", "norms", "speed", "perplexity"):
        press(page, f"#figures button[data-name={name}]")
        until(page, f"curves.figure === '{name}'")
    press(page, "#against button[data-name=tokens]")
    until(page, "curves.against === 'tokens'")
    press(page, "#lines button")
    until(page, "curves.hidden.size === 1")
    for _ in range(3):
        page.evaluate("grid.chosen = null; drawGrid()")
        press(page, "#paths button")
        until(page, "grid.chosen?.path === 0")

    focused = "document.activeElement.dataset.name"
    page.locator("#figures button[data-name=speed]").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("curves.figure") == "speed"
    page.wait_for_timeout(100)
    assert page.evaluate("clock.playing !== null")
    assert page.evaluate(focused) == "speed"
    page.locator("#now").click()
    page.locator("#figures button[data-name=norms]").focus()
    page.keyboard.press("Space")
    assert page.evaluate(focused) == "norms"
    assert page.evaluate("curves.figure") == "norms"


def test_what_is_drawn_again_in_another_order_keeps_its_elements(opened, file):
    page = opened(file.as_uri())
    page.locator(".cell").first.wait_for()
    drawn = """([orders, focused]) => {
      const holder = make("div"), row = names => names.map(name => make("button", {
        textContent: name, data: name.length === 1 ? {key: name} : {}}));
      document.body.append(holder);
      fill(holder, ...row(orders[0]));
      const first = holder.querySelector(`[data-key=${focused}]`);
      first.focus();
      return orders.map(names => {
        fill(holder, ...row(names), null, "end");
        return [[...holder.childNodes].map(node => node.textContent).join(" "),
          document.activeElement === first && first.textContent] }) }"""
    orders = ["abc", "cab", "bca", "xbca", "bx", "ybzxq", ["one", "b", "two"], "b"]
    shown = page.evaluate(drawn, [[list(names) for names in orders], "b"])
    assert shown == [[" ".join([*names, "end"]), "b"] for names in orders]


def test_a_run_that_goes_on_changes_without_a_reload(opened, half, copy_of, dipaco):
    copy, pace = copy_of(half), Pace(is_server=False)
    pace.look_seconds = pace.status_seconds = pace.fault_seconds = 0.05
    with served(copy.folder, pace) as (url, _):
        page = opened(url)
        page.locator(".cell").first.wait_for()
        page.evaluate("window.loadedOnce = true")
        page.locator("#where").scroll_into_view_if_needed()
        until(page, "run.texts !== undefined")
        page.evaluate("run.texts = null")  # as before the first routing
        assert "finished" not in page.locator("#headline").text_content()
        assert set(cells(page, "phase").values()) != {"2"}
        ended = dipaco("train", copy.config, "--run", copy.folder)
        assert ended.code == 0, ended.err
        page.locator("#headline", has_text="finished").wait_for(timeout=60_000)
        assert set(cells(page, "phase").values()) == {"2"}
        with reading(copy.folder) as run:
            inspection = inspection_of(run)
        norms = {
            name: f"{at['steps'][-1]['norm']:.3f}" for name, at in inspection["modules"].items()
        }
        assert cells(page, "norm") == norms
        assert page.evaluate("window.loadedOnce")
        again = opened(url)
        again.locator(".cell").first.wait_for()
        same = "[...document.querySelectorAll('#worker-table td, #rows td')].map(c => c.innerText)"
        assert page.evaluate(same) == again.evaluate(same)
        assert page.evaluate("run.count") == again.evaluate("run.count")
        again.locator("#where").scroll_into_view_if_needed()
        scored = "run.texts?.scores.map(({phase}) => phase).join() === '1,2'"
        for each in (page, again):
            until(each, scored)
        page.close()  # before its server ends
        again.close()


def test_every_fault_is_on_the_waterfall_with_what_it_cost(opened, faulty):
    with reading(faulty.folder) as run:
        events = [(e.outcome, e.worker, e.reason) for e in run.ledger.history.after()]
    bad = ("error", "crash", "lost", "postponed", "died", "silent")
    expected = sorted(event for event in events if event[0] in bad)
    assert {event[0] for event in expected} == set(bad)
    with served(faulty.folder) as (url, _):
        page = opened(url)
        page.locator("#faults tr[data-outcome]").first.wait_for()
        rows = page.locator("#faults tr[data-outcome]").evaluate_all(
            "rows => rows.map(r => [...r.cells].map(c => c.textContent))"
        )
        assert sorted((row[2], row[1], row[5]) for row in rows) == expected
        assert all(row[3] for row in rows if row[2] in ("error", "crash", "lost", "postponed"))
        marked = page.evaluate("run.faults.length")
        assert marked == len(expected)
        assert page.locator(".alarm").count() >= 3
        assert HOST in page.locator("#worker-table").text_content()
        page.locator("#waterfall").hover(position={"x": 700, "y": 30})
        assert page.locator("#tip").text_content()
        page.close()


def test_a_domain_that_is_called_like_a_script_is_a_name(opened, tiny, tmp_path):
    name = "</script><script>window.spoilt = true</script><img src=x onerror='window.spoilt=1'>"
    with reading(tiny.folder) as run:
        recording, texts = map(json.loads, recording_and_texts(run))
    recording["name"] = name
    for of in recording["status"]["stages"]["route"]["domains"]:
        of[name] = of.pop(next(iter(of)))
    texts["domains"] = [name] * len(texts["domains"])
    texts["beginnings"]["texts"] = [name] * len(texts["beginnings"]["texts"])
    volunteer = {"place": 1, "name": name, "samples": 5, "share": 1.0, "steps": 2}
    recording["status"]["volunteers"] = [volunteer | {"paths": [0], "is_here": True}]
    recording["alarms"] = [{"level": "error", "sentence": name}]
    recording["completions"] = [
        {"phase": 1, "path": 0, "prompt": name, "text": text, "seconds": seconds}
        for text, seconds in ((name, 0), ("later", recording["now"] + 1))
    ]
    file = tmp_path / "page.html"
    file.write_bytes(whole_page(json.dumps(recording).encode(), json.dumps(texts).encode()))
    page = opened(file.as_uri())
    page.locator(".cell").first.wait_for()
    assert page.locator("#domains th", has_text=name).count() == 1
    assert page.locator(".alarm span").text_content() == name
    assert page.locator("#volunteers li").text_content() == f"1. {name}5"
    (shown,) = page.locator("#completion-list .completion").all_text_contents()
    assert shown == f"phase 1, path 0: {name}{name}"
    direction = "e => getComputedStyle(e.querySelector('bdi')).direction"
    assert page.locator(".completion").first.evaluate(direction) == "ltr"
    page.locator(".completion bdi").first.evaluate("e => e.textContent = 'תני רבן'")
    assert page.locator(".completion").first.evaluate(direction) == "rtl"
    page.fill("#words", "0")
    page.locator("#seek button").click()
    page.locator(".document blockquote", has_text="<img").wait_for()


def test_after_a_rollback_the_page_shows_the_routing_and_the_evaluation_that_stand(
    opened, tiny, tmp_path
):
    """The run was routed again at phase 1, then went back to phase 0."""
    with reading(tiny.folder) as run:
        recording, _ = map(json.loads, recording_and_texts(run))
    now, names = recording["now"] + 3, recording["names"]
    for name, value in (("outcomes", "rollback"), ("reasons", "modular to phase 0")):
        names[name].append(value)
    route, evaluate = (names["kinds"].index(kind) for kind in ("route", "evaluate"))
    done, modular = names["outcomes"].index("done"), names["arms"].index("modular")
    back = len(names["outcomes"]) - 1, len(names["reasons"]) - 1
    for name, values in {
        "ended": (now - 2, now - 1, now),
        "begun": (now - 2, now - 1, now),
        "kinds": (route, names["kinds"].index(""), evaluate),
        "phase": (1, -1, 2),
        "outcomes": (done, back[0], done),
        "reasons": (names["reasons"].index(""), back[1], names["reasons"].index("")),
        "arms": (names["arms"].index(""), names["arms"].index(""), modular),
        "subjects": [names["subjects"].index("")] * 3,
        "workers": (0, 0, 0),
        "attempt": (1, 0, 1),
    }.items():
        column = recording["events"][name]
        recording["events"][name] = packed([*unpacked(column), *values], column["type"])
    recording["now"] = now
    file = tmp_path / "page.html"
    file.write_bytes(whole_page(json.dumps(recording).encode(), b"null"))
    page = opened(file.as_uri())
    page.locator("#where-when", has_text="as first routed").wait_for()
    assert page.evaluate("run.evaluated['modular 2']") == pytest.approx(now, rel=1e-6)


def test_without_a_run_the_page_says_why(opened, tmp_path):
    with served(tmp_path / "nowhere") as (url, _):
        page = opened(url)
        page.locator("#problem", has_text="NoSuchRun").wait_for()
        assert page.locator("#content").is_hidden()


def test_a_key_of_any_letters_is_asked_for_and_sent(browser, tiny):
    with served(tiny.folder, keys=("ключ-é",)) as (url, _):
        page = browser.new_page()
        page.goto(url)
        for key in ("wrong", "ключ-é"):
            page.locator("#problem", has_text="needs an API key").wait_for()
            page.fill("#key", key)
            page.locator("#key-label button").click()
        page.locator("#name", has_text="toy").wait_for()
        page.close()


def test_a_smaller_run_in_the_place_of_one_that_was_removed_is_shown(
    opened, tiny, copy_of, tmp_path
):
    make_run(tmp_path / "run", phases=1)
    other, pace = copy_of(tiny).folder, Pace(is_server=False)
    pace.look_seconds = 0.05
    with served(tmp_path / "run", pace) as (url, _):
        page = opened(url)
        page.locator(".cell").last.click()
        page.evaluate("fall.from = 1e6; fall.until = 2e6; goTo(run.end / 2)")
        (tmp_path / "run").rename(tmp_path / "gone")
        page.locator("#problem", has_text="NoSuchRun").wait_for()
        other.rename(tmp_path / "run")
        page.locator("#name", has_text="toy").wait_for()
        until(page, "document.querySelector('#problem').textContent === ''")
        with reading(tmp_path / "run") as run:
            status = status_of(run, with_sizes=False)
        assert set(cells(page, "phase")) == set(status["modules"])
        assert page.evaluate("run.time <= run.end && fall.from < run.end")
        page.close()


def test_256_paths_with_private_parts_fit_wide_and_on_a_phone(opened, tmp_path):
    make_run(tmp_path / "big", phases=3)
    with served(tmp_path / "big") as (url, _):
        for viewport in (WIDE, PHONE):
            page = opened(url, viewport)
            page.locator(".cell").first.wait_for()
            assert page.locator(".cell").count() == 256 + 16 + 16
            assert page.locator("#grid polyline").count() == 256
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            page.evaluate("goTo(run.end / 2)")
            assert set(cells(page, "phase").values()) <= {"1", "2"}
            page.locator(".cell[data-module='early/0003']").click()
            assert page.locator("#grid polyline.on").count() == 16
            page.close()
