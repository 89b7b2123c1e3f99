"""Compiling at the start: every program is announced before it runs, and the total is right."""

import functools

import pytest

from dipaco.serving import warm_up
from dipaco.serving.errors import TooManyMaps
from dipaco.serving.warm_up import WarmUp, WarmUpProgram
from tests.support.serving_rig import make_loop, prepared


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
