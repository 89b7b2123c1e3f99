"""The server: what it sends, to whom; a hundred pages are one reader; it writes nothing."""

import asyncio
import contextlib
import errno
import json
import threading
import time
import urllib.error
import urllib.request
from types import SimpleNamespace

import pytest

pytest.importorskip("starlette", reason="the dashboard needs the `serve` extra")

import httpx

from dipaco.dashboard import server
from dipaco.dashboard import watcher as watcher_module
from dipaco.dashboard.reader import Change
from dipaco.dashboard.watcher import OLD_SECONDS, Freshness, Pace, Watcher, mark_of
from dipaco.runs.errors import NoSuchRun
from dipaco.runs.opening import reading
from dipaco.store.address import Address
from dipaco.store.errors import ObjectMissing
from dipaco.store.layout import Layout
from tests.dashboard.conftest import served
from tests.support.members import join


def get(url, key=None):
    request = urllib.request.Request(url)
    if key is not None:
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


@contextlib.contextmanager
def watching(folder, pace):
    watcher = Watcher(Address.of(folder), pace)
    watcher.start()
    try:
        yield watcher
    finally:
        watcher.stop()


def test_the_page_is_open_and_the_run_needs_a_key(tiny):
    """A key of any letters is sent as its bytes, as `dipaco serve` takes it."""
    with served(tiny.folder, keys=("ключ",)) as (url, _):
        status, content = get(url)
        assert status == 200
        assert b"</html>" in content
        for place in ("recording", "changes", "texts"):
            for key in (None, "other", "клю"):
                status, content = get(url + place, key and key.encode().decode("latin-1"))
                assert status == 401, place
                assert "needs an API key" in json.loads(content)["error"]["message"]
        for key in ("ключ", "ключ "):
            status, content = get(url + "recording", key.encode().decode("latin-1"))
            assert json.loads(content)["name"] == "toy"


def test_pages_of_one_client_leave_places_for_another(tiny, monkeypatch):
    monkeypatch.setattr(server, "MOST_STREAMS", 4)
    mine, other = ({"Authorization": f"Bearer {key}"} for key in ("mine", "other"))

    async def all_at_once(url):
        async with (
            httpx.AsyncClient(base_url=url, timeout=60) as client,
            contextlib.AsyncExitStack() as opened,
        ):

            async def status(headers):
                stream = client.stream("GET", "changes?after=0", headers=headers)
                return (await opened.enter_async_context(stream)).status_code

            streams = [await status(mine) for _ in range(6)]
            assert (await client.get("recording", headers=mine)).status_code == 200
            return streams, await status(other)

    with served(tiny.folder, keys=("mine", "other")) as (url, _):
        assert get(url + "changes?after=x", "mine")[0] == 400
        assert asyncio.run(all_at_once(url)) == ([200] * 4 + [429] * 2, 200)


def test_a_page_that_the_end_of_the_server_cuts_off_is_told_so(tiny, monkeypatch):
    begun, may_end = threading.Event(), threading.Event()
    monkeypatch.setattr(Watcher, "table", lambda _: begun.set() or may_end.wait(30))

    async def cut_off(watcher):
        transport = httpx.ASGITransport(server.make_app(watcher))
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            asking = asyncio.ensure_future(client.get("/texts"))
            await asyncio.to_thread(begun.wait, 30)
            asking.cancel()
            return await asking

    with served(tiny.folder) as (_, watcher):
        answer = asyncio.run(cut_off(watcher))
        may_end.set()
    assert answer.status_code == 503
    assert "is stopping" in answer.json()["error"]["message"]


def test_where_there_is_no_run_the_page_is_told_so(tmp_path):
    with served(tmp_path / "nowhere") as (url, _):
        status, content = get(url + "recording")
        assert status == 200
        assert json.loads(content)["problem"].startswith("NoSuchRun: ")


def test_a_hundred_pages_are_one_reader_and_none_asks_nothing(half, copy_of, monkeypatch):
    from dipaco.control.ledger import Ledger

    asked, select = [], Ledger.select
    monkeypatch.setattr(
        Ledger, "select", lambda self, *a, **k: asked.append(a[0]) or select(self, *a, **k)
    )
    copy, pace = copy_of(half), Pace(is_server=False)
    pace.look_seconds = 0.01
    with watching(copy.folder, pace) as watcher:
        watcher.recording()
        quiet = len(asked)
        heard = [threading.Event() for _ in range(100)]
        pages = contextlib.ExitStack()
        for event in heard:
            pages.enter_context(watcher.opened(event.set))
        number = json.loads(watcher.recording())["number"]
        with reading(copy.folder) as run:
            run.ledger.meta.set_command("drain")
        for event in heard:
            assert event.wait(60)
        assert len({id(kept) for kept in watcher.after(number)}) == len(watcher.after(number))
        looks = sum("AS number" in text for text in asked[quiet:])
        events = sum("h.machine" in text for text in asked[quiet:])
        assert 1 <= events <= 3  # one for the command, not a hundred
        assert looks >= events
        assert watcher.after(number - 1000) is None
        pages.close()
    assert not watcher._thread.is_alive()


def test_reading_writes_nothing(tiny, copy_of):
    copy = copy_of(tiny)
    with reading(copy.folder) as run:
        run.ledger.facts.stages()
    before = {file: file.read_bytes() for file in copy.folder.rglob("*") if file.is_file()}
    with served(copy.folder) as (url, _):
        for place in ("", "recording", "texts"):
            assert get(url + place)[0] == 200
    after = {file: file.read_bytes() for file in copy.folder.rglob("*") if file.is_file()}
    assert {file.name for file in after if before.get(file) != after[file]} <= {
        "ledger.sqlite-host",  # which host reads
        "ledger.sqlite-shm",
        "ledger.sqlite-wal",
    }


def test_what_happens_soon_after_a_read_of_the_status_is_not_forgotten():
    quiet = Change(0, set(), {}, set(), set(), False, False)
    pace = Pace(is_server=True)
    for change, seconds in (
        (quiet._replace(outcomes={"error"}, is_new=True), pace.fault_seconds),
        (quiet._replace(kinds={"report"}, is_new=True), pace.fault_seconds),
        (quiet._replace(outcomes={"done"}, is_new=True), pace.status_seconds),
    ):
        freshness = Freshness(pace)
        assert freshness.is_due(0, is_asked=False)
        freshness.read(0, is_finished=True)
        assert not freshness.is_due(1e9, is_asked=True)
        freshness.note(change)
        assert not freshness.is_due(seconds - 1, is_asked=False)
        freshness.note(quiet)
        assert freshness.is_due(seconds - 1, is_asked=True)
        assert freshness.is_due(seconds + 1, is_asked=False)
        freshness.read(seconds + 1, is_finished=True)
        freshness.note(quiet)
        assert not freshness.is_due(1e9, is_asked=True)


def test_the_status_of_an_unfinished_run_grows_old_though_nothing_happens():
    pace = Pace(is_server=True)
    freshness = Freshness(pace)
    freshness.read(0, is_finished=False)
    assert not freshness.is_due(OLD_SECONDS - 1, is_asked=True)
    assert freshness.is_due(OLD_SECONDS + 1, is_asked=True)
    assert not freshness.is_due(pace.status_seconds - 1, is_asked=False)
    assert freshness.is_due(pace.status_seconds + 1, is_asked=False)


def test_a_page_says_that_the_last_worker_is_silent(half, copy_of, monkeypatch):
    """No task is held and no event is written; another page is open meanwhile."""
    monkeypatch.setattr(watcher_module, "OLD_SECONDS", 0.0)
    copy, pace = copy_of(half), Pace(is_server=False)
    pace.look_seconds, pace.status_seconds = 0.01, 1e9
    with reading(copy.folder) as run:
        join(run.ledger, "w")
    with watching(copy.folder, pace) as watcher:
        with watcher.opened(lambda: None):
            before = json.loads(watcher.recording())
            assert before["status"]["workers"]["w"]["state"] == "here"
            with reading(copy.folder) as run:
                database = run.ledger._database
                (member,) = (each for each in run.ledger.members.list() if each.name == "w")
                of = {"name": "w", "heartbeats": member.heartbeats}
                with database.transaction():
                    database.change("mark_silent", **of)
            after = json.loads(watcher.recording())
        assert after["status"]["workers"]["w"]["state"] == "silent"
        assert len(after["events"]["ended"]) == len(before["events"]["ended"])


def test_a_run_on_a_server_that_begins_again_in_its_folder_is_another(tmp_path):
    """The file that names the server may get the number that the former one had."""
    address, file = Address(tmp_path), Layout(tmp_path).database
    marks = set()
    for _ in range(3):
        file.write_text("postgresql://host/name")
        marks.add(mark_of(address))
        file.unlink()
        time.sleep(0.01)  # what a file system's clock may take for one moment
    assert len(marks) == 3
    assert mark_of(address) is None


def test_a_run_that_is_gone_is_said_and_another_in_its_place_is_shown(tiny, copy_of, tmp_path):
    """A file that is removed stays readable for those who have it open."""
    place, pace = tmp_path / "run", Pace(is_server=False)
    pace.look_seconds = 0.01
    copy_of(tiny).folder.rename(place)
    other = copy_of(tiny).folder  # as much is routed and evaluated in it
    with reading(place) as run:
        run.ledger.meta.set_command("drain")
    heard = threading.Event()
    with watching(place, pace) as watcher:
        before, texts = json.loads(watcher.recording()), watcher.table()
        assert before["status"]["command"] == "drain"
        with watcher.opened(heard.set):
            place.rename(tmp_path / "gone")
            while watcher.after(before["number"]) is not None:  # the page is to begin again
                assert heard.wait(60)
                heard.clear()
            with pytest.raises(NoSuchRun):
                watcher.recording()
        with pytest.raises(NoSuchRun):
            watcher.recording()
        other.rename(place)
        assert json.loads(watcher.recording())["status"]["command"] == "run"
        assert watcher.table() is not texts
        (tmp_path / "gone").rename(other)
        place.rename(tmp_path / "gone")
        other.rename(place)  # nobody has looked in between
        after = json.loads(watcher.recording())
        assert after["status"]["command"] == "drain"
        assert after["number"] > before["number"]


def test_after_a_rollback_texts_are_read_again_though_as_much_is_routed(tiny, monkeypatch):
    made, change = [], Change(0, set(), {}, set(), set(), False, True)
    made_of = lambda run: made.append(run) or SimpleNamespace(table=dict)  # noqa: E731
    monkeypatch.setattr(watcher_module, "Texts", made_of)
    monkeypatch.setattr(watcher_module, "difference_of", lambda *of: {})
    watcher, route = Watcher(Address.of(tiny.folder)), {"route": {}, "route@1": {}}
    for rollbacks, times in (([], 1), ([], 1), ([{"arm": "modular", "phase": 0}], 2)):
        state = {"status": {"stages": route, "rollbacks": rollbacks}, "curves": {"modular": []}}
        watcher._publish(None, change, state, {})
        watcher.table()
        assert len(made) == times


FAULTS = {
    "TextsNotReadable": OSError(errno.EIO, "Input/output error"),
    "ObjectMissing": ObjectMissing(file="a shard"),
}


@pytest.mark.parametrize(("name", "fault"), FAULTS.items())
def test_texts_that_could_not_be_read_are_asked_for_again(tiny, monkeypatch, name, fault):
    made = watcher_module.Texts

    def failing(run):
        raise fault

    with served(tiny.folder) as (url, _):
        monkeypatch.setattr(watcher_module, "Texts", failing)
        status, content = get(url + "texts")
        assert status == 503
        assert json.loads(content)["error"]["message"].startswith(f"{name}: ")
        monkeypatch.setattr(watcher_module, "Texts", made)
        assert json.loads(get(url + "texts")[1])["domains"]


def test_before_the_first_routing_there_are_no_texts_and_nothing_is_wrong(tiny, copy_of):
    copy = copy_of(tiny)
    with reading(copy.folder) as run, run.ledger._database.transaction():
        run.ledger._database._connection.execute("DELETE FROM stages")
    (copy.folder / "corpus" / "manifest.json").unlink()
    with served(copy.folder) as (url, _):
        assert get(url + "texts") == (200, b"null")


def test_a_page_that_begins_gets_the_status_of_now_and_others_are_not_held_up(
    half, copy_of, monkeypatch
):
    copy, pace, locked = copy_of(half), Pace(is_server=False), []
    pace.status_seconds = pace.fault_seconds = 1e9
    watcher = Watcher(Address.of(copy.folder), pace)

    def made(*arguments, _plain=watcher_module.recording_of):
        loop = threading.Thread(target=watcher.after, args=(0,), daemon=True)  # as the server's
        loop.start()
        loop.join(10)
        locked.append(loop.is_alive())
        return _plain(*arguments)

    monkeypatch.setattr(watcher_module, "recording_of", made)
    watcher.start()
    try:
        assert json.loads(watcher.recording())["status"]["command"] == "run"
        with reading(copy.folder) as run:
            run.ledger.meta.set_command("drain")
        assert json.loads(watcher.recording())["status"]["command"] == "drain"
    finally:
        watcher.stop()
    assert locked
    assert not any(locked)
