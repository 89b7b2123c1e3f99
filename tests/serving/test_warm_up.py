"""Compiling at the start: every program is announced before it runs, and the total is right."""

import functools
import threading

import pytest

from dipaco.serving import warm_up
from dipaco.serving.errors import TooManyMaps
from dipaco.serving.warm_up import WarmUp, WarmUpProgram
from tests.support.serving_rig import ids, make_loop, prepared, request


def test_each_program_is_announced_before_it_runs():
    said = []
    programs = [WarmUpProgram(name, functools.partial(said.append, name)) for name in "abc"]
    WarmUp(lambda *told: said.append(told)).run(programs)
    told = [(f"compiling {name}", done, 3) for done, name in enumerate("abc")]
    assert said == [told[0], "a", told[1], "b", told[2], "c"]


def test_a_loop_announces_as_many_programs_as_it_has_each_by_its_own_name():
    loop, said = make_loop(), []
    first = [WarmUpProgram("another's", lambda: None)]
    loop.warm_up(prepared(0), WarmUp(lambda *told: said.append(told)), first)
    names = [name for name, _, _ in said]
    assert names[0] == "compiling another's"
    assert [told[1:] for told in said] == [(n, len(set(names))) for n in range(len(names))]
    compiled = {name.removeprefix("compiling ") for name in names}
    assert {"prefill of 1 x 16 tokens", "scoring a prompt", "copying a row"} < compiled
    assert {"decoding 1 row of 32 tokens", "decoding 4 rows of 64 tokens"} < compiled


def test_a_brief_start_compiles_what_a_first_answer_needs_and_the_rest_while_nobody_asks():
    said, is_done = [], threading.Event()
    told = WarmUp(lambda *told: said.append(told), is_brief=True, when_done=is_done.set)
    loop = make_loop()
    loop.warm_up(prepared(0), told)
    assert [name for name, _, _ in said] == [
        "compiling prefill of 1 x 16 tokens",
        "compiling prefill of 1 x 32 tokens",
        "compiling prefill of 1 x 64 tokens",
        "compiling decoding 1 row of 32 tokens",
    ]
    assert not is_done.is_set()
    loop.run()
    try:
        stream = loop.submit(request())
        assert is_done.wait(timeout=120)
        others = [
            loop.submit(request(prompt, path)) for path in (1, 2) for prompt in ((7,), (8, 9))
        ]
    finally:
        loop.stop(drain_seconds=60)
    assert len(ids(stream)) == 10
    assert [len(ids(other)) for other in others] == [10] * 4


def test_what_cannot_be_compiled_behind_is_told_and_requests_go_on(caplog):
    ran = []
    programs = [
        WarmUpProgram("a", lambda: ran.append("a"), is_first=True),
        WarmUpProgram("b", lambda: 1 / 0),
        WarmUpProgram("c", lambda: ran.append("c")),
    ]
    warm_up = WarmUp(is_brief=True, when_done=lambda: ran.append("done"))
    warm_up.run(programs)
    assert [warm_up.go_on(), warm_up.go_on()] == [True, False]
    assert ran == ["a", "done"]
    assert "b was not compiled ahead of requests: division by zero" in caplog.text


def test_a_program_for_which_there_may_be_no_room_is_a_sentence(tmp_path, monkeypatch):
    """XLA would end the process."""
    maps, most = tmp_path / "maps", tmp_path / "max_map_count"
    monkeypatch.setattr(warm_up, "MAPS", maps)
    monkeypatch.setattr(warm_up, "MOST_MAPS", most)
    ran = []
    programs = [WarmUpProgram(name, functools.partial(ran.append, name)) for name in "ab"]
    WarmUp().run(programs)  # where the machine does not say
    most.write_text("1000\n")
    maps.write_text("7f00-7f01 r-xp\n" * 900)
    WarmUp().run(programs)
    maps.write_text("7f00-7f01 r-xp\n" * 901)
    with pytest.raises(TooManyMaps, match=r"901 of the 1,000 memory maps.*fewer `--rows`"):
        WarmUp().run(programs)
    assert ran == ["a", "b", "a", "b"]
