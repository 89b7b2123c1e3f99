"""Compiling at the start: every program is announced before it runs, and the total is right."""

import pytest

from dipaco.serving.warm_up import WarmUp, WarmUpProgram
from tests.support.serving_rig import make_loop, prepared


def test_each_program_is_announced_before_it_runs():
    said = []
    warm_up = WarmUp(lambda *told: said.append(told))
    warm_up.expect(3)
    warm_up.run([WarmUpProgram(name, lambda name=name: said.append(name)) for name in ("a", "b")])
    warm_up.run([WarmUpProgram("c", lambda: said.append("c"))])
    assert said == [("a", 0, 3), "a", ("b", 1, 3), "b", ("c", 2, 3), "c"]


def test_more_programs_than_expected_raise_the_total():
    said = []
    WarmUp(lambda *told: said.append(told)).run([WarmUpProgram(name, int) for name in "ab"])
    assert said == [("a", 0, 1), ("b", 1, 2)]


def test_a_loop_announces_as_many_programs_as_it_has_each_by_its_own_name():
    loop, said = make_loop(), []
    warm_up = WarmUp(lambda *told: said.append(told))
    warm_up.expect(loop.num_programs)
    loop.warm_up(prepared(0), warm_up)
    names = [name for name, _, _ in said]
    assert len(set(names)) == len(names) == loop.num_programs
    assert {total for _, _, total in said} == {loop.num_programs}
    assert [done for _, done, _ in said] == list(range(loop.num_programs))
    assert {"prefill of 1 x 16 tokens", "scoring a prompt", "copying a row"} < set(names)
    assert "decoding 1 row of 32 tokens" in names
    assert "decoding 4 rows of 64 tokens" in names


def test_a_service_counts_routing_and_the_loop_together(tiny, limits):
    pytest.importorskip("starlette", reason="HTTP needs the `serve` extra")
    from dipaco.serving.service import Service, ServiceSettings

    said = []
    with Service(tiny.folder, ServiceSettings(limits=limits), say=lambda _: None) as service:
        service.start(WarmUp(lambda *told: said.append(told)))
    totals = {total for _, _, total in said}
    assert totals == {len(said)}
    assert said[0][0] == "routing of 1 prompt"
    assert said[-1][0].startswith("decoding ")
