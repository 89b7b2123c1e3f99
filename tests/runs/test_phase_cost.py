"""What a run will need, from its config: bytes by hand, times by one formula, what a step takes."""

import dataclasses
import json

import pytest

from dipaco.evaluation.tables import seconds_over_link
from dipaco.model.config import MeshConfig, num_parameters
from dipaco.outer.compress import codec_named
from dipaco.overrides import load_config
from dipaco.runs import step_time
from dipaco.runs.forecast import forecast, run_seconds
from dipaco.runs.phase_cost import (
    Circumstances,
    Traffic,
    codec_for,
    lock_step_cost,
    module_parameters,
    phase_cost,
)
from dipaco.runs.worker_memory import activation_bytes, step_memory, worker_memory
from dipaco.shipped import shipped_files

TOY = load_config("toy")
SIZE = 4 * num_parameters(TOY.model)  # bytes of a path
SNAPSHOT = 0.9 * 2 * SIZE
ON_20 = Circumstances(workers=4, megabits=20.0, step_seconds=2.0)


def with_inner(**settings):
    return dataclasses.replace(TOY, inner=dataclasses.replace(TOY.inner, **settings))


def alone(config=TOY, **circumstances):
    return phase_cost(config, dataclasses.replace(ON_20, workers=1, **circumstances))


def test_one_machine_only_sends_to_the_bucket_and_fetches_nothing():
    """Four paths with their AdamW states and contributions, and all modules with their momentum."""
    modules = 4 * sum(module_parameters(TOY).values())
    assert alone().traffic == {
        "modules": Traffic(0.0, modules),
        "contributions": Traffic(0.0, 4 * SIZE),
        "snapshots": Traffic(0.0, 4 * SNAPSHOT),
        "outer states": Traffic(0.0, modules),
    }


def test_a_machine_for_each_path_fetches_what_others_have_stepped():
    """It steps one of four modules, whose paths send half of two paths' bytes; with the chance of a
    half it trains a path through that module, and has it. Its snapshot is its own.
    """
    traffic = phase_cost(TOY, ON_20).traffic
    of_module = sum(4 * size for size in module_parameters(TOY).values()) / 4
    assert traffic["modules"].down == pytest.approx(0.75 * (SIZE + of_module / 2))
    assert traffic["modules"].up == pytest.approx(of_module)
    assert traffic["contributions"] == pytest.approx((0.75 * SIZE, SIZE))
    assert traffic["snapshots"] == (0.0, pytest.approx(SNAPSHOT))
    assert traffic["outer states"] == pytest.approx((0.75 * of_module, of_module))


def test_snapshots_that_stay_on_their_disk_are_sent_now_and_then():
    """Every fourth, and the last in any case."""
    keep = dataclasses.replace(TOY.retention, send_snapshots_every=4, modules=None)
    for phases, sent in ((8, 2), (6, 2), (2, 1)):
        config = dataclasses.replace(TOY, retention=keep, phases=phases)
        snapshots = phase_cost(config, ON_20).traffic["snapshots"]
        assert snapshots == (0.0, pytest.approx(SNAPSHOT * sent / phases))
        of_last = phase_cost(config, ON_20, phases=[phases - 1]).traffic["snapshots"]
        assert of_last == (0.0, pytest.approx(SNAPSHOT))


def test_modules_come_whole_before_the_first_phase_and_as_what_was_sent_in_the_one_before():
    """The last phase of `turns2` sends all of the values, for no machine to fetch."""
    outer = dataclasses.replace(TOY.outer, codec="turns2", momentum=0.0, learning_rate=1.0)
    config = dataclasses.replace(TOY, outer=outer, phases=3)
    beside = dataclasses.replace(ON_20, steps_elsewhere=True)
    of_phase = [phase_cost(config, beside, phases=[phase]).traffic for phase in range(3)]
    assert of_phase[0]["modules"].down == SIZE
    few = codec_named("turns2", outer).bits_per_value / 32 * SIZE
    assert of_phase[1]["modules"].down == pytest.approx(few)
    assert of_phase[2]["modules"].down == pytest.approx(few)
    assert of_phase[1]["contributions"].up == pytest.approx(few)
    assert of_phase[2]["contributions"].up > 5 * few
    mean = phase_cost(config, beside).traffic
    for kind in ("modules", "contributions"):
        each = [sum(traffic[kind]) for traffic in of_phase]
        assert sum(mean[kind]) == pytest.approx(sum(each) / 3)


@pytest.mark.parametrize("name", ["bfloat16", "int8", "int4"])
def test_a_codec_takes_its_bits_and_leaves_a_residual_in_the_snapshot(name):
    whole = dataclasses.replace(TOY, outer=dataclasses.replace(TOY.outer, fetch="whole"))
    plain, coded = phase_cost(whole, ON_20), phase_cost(whole, ON_20, codec_name=name)
    share = codec_named(name, TOY.outer).bits_per_value / 32
    assert coded.traffic["contributions"] == pytest.approx(
        tuple(plain.traffic["contributions"].times(share))
    )
    assert coded.traffic["snapshots"].up == pytest.approx(1.5 * plain.traffic["snapshots"].up)
    assert coded.traffic["modules"] == plain.traffic["modules"]
    outer = dataclasses.replace(whole.outer, codec=name)
    assert phase_cost(dataclasses.replace(TOY, outer=outer), ON_20) == coded


def test_a_module_comes_as_the_contributions_of_other_paths_where_that_is_less():
    """In 2x2 one of two; and then the machine has the outer state of its own modules too."""
    whole = dataclasses.replace(TOY.outer, fetch="whole", codec="int4")
    plain, coded = (
        phase_cost(dataclasses.replace(TOY, outer=outer), ON_20).traffic
        for outer in (whole, dataclasses.replace(whole, fetch="cheapest"))
    )
    share = codec_named("int4", TOY.outer).bits_per_value / 32
    saved = 0.75 * SIZE * (1 - share) / 2  # at the second of two phases: before, all comes whole
    assert plain["modules"].down - coded["modules"].down == pytest.approx(saved)
    assert coded["outer states"].down == pytest.approx(plain["outer states"].down / 2)
    assert coded["contributions"] == plain["contributions"]


def test_an_executor_beside_the_bucket_takes_the_outer_steps_off_the_links():
    usual = phase_cost(TOY, ON_20)
    cost = phase_cost(TOY, dataclasses.replace(ON_20, steps_elsewhere=True))
    assert cost.traffic["outer states"] == Traffic(0.0, 0.0)
    assert cost.traffic["modules"] == Traffic(SIZE, 0.0)
    assert cost.traffic["contributions"] == Traffic(0.0, SIZE)
    assert cost.computing > usual.computing


@pytest.mark.parametrize("given", [{"steps_elsewhere": True}, {"workers": 5}])
def test_a_delay_hides_the_way_of_the_modules_where_others_step_them(given):
    late = dataclasses.replace(TOY, outer=dataclasses.replace(TOY.outer, delay=1))
    slow = dataclasses.replace(ON_20, megabits=0.01, **given)
    usual = phase_cost(TOY, slow)
    more = seconds_over_link(0.0, SNAPSHOT / 2, slow.megabits)  # the path's own parameters
    assert phase_cost(late, slow).seconds == pytest.approx(usual.seconds - 2.0 + more)
    fast = dataclasses.replace(ON_20, **given)
    assert phase_cost(late, fast).transfer_seconds > 0, "snapshots and contributions stay"


def test_a_delay_hides_nothing_where_all_who_could_step_train_on():
    late = dataclasses.replace(TOY, outer=dataclasses.replace(TOY.outer, delay=1))
    more = seconds_over_link(0.0, SNAPSHOT / 2, ON_20.megabits)
    assert phase_cost(late, ON_20).seconds == pytest.approx(phase_cost(TOY, ON_20).seconds + more)


def test_levels_that_step_in_turn_send_and_fetch_a_level_at_a_time():
    """Of two levels, one at the end of each phase, and both at the end of the last. A snapshot also
    has the path's own parameters, which it goes on from.
    """
    in_turn = dataclasses.replace(
        TOY, phases=4, outer=dataclasses.replace(TOY.outer, stagger=True, fetch="whole")
    )
    usual = phase_cost(
        dataclasses.replace(TOY, outer=dataclasses.replace(TOY.outer, fetch="whole")), ON_20
    )
    turns = phase_cost(in_turn, ON_20)
    size_of = module_parameters(TOY)
    first, second = (
        sum(4 * size for name, size in size_of.items() if name.startswith(level.name)) / 2
        for level in TOY.topology.levels
    )
    # The first after phases 0, 2 and 3, the second after 1 and 3.
    sent = (3 * first + 2 * second) / 4
    assert turns.traffic["contributions"].up == pytest.approx(sent)
    assert turns.traffic["snapshots"].up == pytest.approx(1.5 * SNAPSHOT)
    assert turns.bytes_per_machine.down < usual.bytes_per_machine.down


def test_without_momentum_there_is_no_outer_state():
    outer = dataclasses.replace(TOY.outer, momentum=0.0)
    cost = phase_cost(dataclasses.replace(TOY, outer=outer), ON_20)
    assert cost.traffic["outer states"] == Traffic(0.0, 0.0)


def test_times_are_of_the_reports_formula():
    cost = alone()
    assert cost.computing_seconds == 4 * TOY.inner.steps * 2.0
    sent = sum(cost.bytes_per_machine)
    assert cost.seconds == pytest.approx(seconds_over_link(cost.computing_seconds, sent, 20.0))
    assert cost.computing == pytest.approx(cost.computing_seconds / cost.seconds)


def test_lock_step_sends_a_gradient_and_fetches_the_mean_at_every_step():
    cost = lock_step_cost(TOY, ON_20)
    assert cost.bytes_per_machine == Traffic(TOY.inner.steps * SIZE, TOY.inner.steps * SIZE)
    assert cost.seconds == seconds_over_link(
        TOY.inner.steps * 2.0, 2 * TOY.inner.steps * SIZE, 20.0
    )
    assert lock_step_cost(TOY, dataclasses.replace(ON_20, workers=1)).computing == 1.0


def test_longer_phases_and_faster_links_bring_computing():
    usual = phase_cost(TOY, ON_20)
    assert phase_cost(TOY, ON_20, steps=30).computing > usual.computing
    faster = phase_cost(TOY, dataclasses.replace(ON_20, megabits=100.0))
    assert faster.transfer_seconds == pytest.approx(usual.transfer_seconds / 5)
    slow_store = phase_cost(TOY, dataclasses.replace(ON_20, store_megabits=20.0))
    assert slow_store.transfer_seconds > 3 * usual.transfer_seconds
    wide_store = phase_cost(TOY, dataclasses.replace(ON_20, store_megabits=1e6))
    assert wide_store.seconds == usual.seconds


def test_machines_beyond_one_for_each_path_wait_and_uneven_ones_too():
    assert phase_cost(TOY, dataclasses.replace(ON_20, workers=400)) == phase_cost(TOY, ON_20)
    fast = dataclasses.replace(ON_20, megabits=1e6, workers=3)
    assert phase_cost(TOY, fast).computing == pytest.approx(4 / (3 * 2), rel=1e-3)


def test_the_run_is_the_base_model_and_its_phases():
    cost = phase_cost(TOY, ON_20)
    base = seconds_over_link(TOY.base.steps * 2.0, 2 * 3 * SIZE, 20.0)
    assert run_seconds(TOY, ON_20, cost) == pytest.approx(base + TOY.phases * cost.seconds)


def test_memory_is_parameters_gradient_two_moments_and_what_the_phase_began_with():
    memory = worker_memory(TOY)
    exact = {name: count for name, count in memory.items() if not name.startswith("activations")}
    assert list(exact.values()) == [SIZE, SIZE, 2 * SIZE, SIZE]
    outer = dataclasses.replace(TOY.outer, codec="int8")
    assert sum(worker_memory(dataclasses.replace(TOY, outer=outer)).values()) == SIZE + sum(
        memory.values()
    )
    assert step_memory(TOY) == 3 * 4 * max(module_parameters(TOY).values())


def test_activations_are_fewer_in_pieces_and_when_they_are_made_again():
    plain = activation_bytes(TOY)
    assert activation_bytes(with_inner(accumulation_steps=4)) == plain // 4
    assert activation_bytes(with_inner(rematerialise=True)) < plain
    assert activation_bytes(with_inner(loss_chunks=4)) < plain


def test_memory_is_near_what_was_measured_for_a_path_of_the_papers_size():
    """Gigabytes of `tools/bench_memory.py --rows 4 --steps 1`, as the tools' page has them."""
    paper = load_config("paper_2x4")
    for settings, measured in (
        ({}, 12.71),
        ({"loss_chunks": 8}, 12.11),
        ({"accumulation_steps": 4}, 6.50),
        ({"rematerialise": True}, 5.65),
    ):
        inner = dataclasses.replace(paper.inner, batch_size=4, **settings)
        memory = sum(worker_memory(dataclasses.replace(paper, inner=inner)).values()) / 1e9
        assert memory == pytest.approx(measured, rel=0.25), settings


def configs():
    return [name for name, file in shipped_files().items() if "def run()" in file.read_text()]


@pytest.mark.parametrize("name", configs())
def test_every_shipped_config_is_forecast_with_a_step_and_without(name):
    config = load_config(name)
    timed = forecast(config, step_seconds=1.0)
    assert 0 < timed.computing <= 1
    assert timed.run_hours > 0
    untimed = forecast(config)
    assert untimed.computing is None
    assert untimed.bytes_of_a_phase == timed.bytes_of_a_phase
    enough = forecast(config, step_seconds=timed.step_seconds_for_goal or 1.0)
    assert enough.computing == pytest.approx(0.95) or not timed.transfer_seconds


def test_a_step_is_measured_once_and_then_remembered(tmp_path, monkeypatch):
    taken = []
    monkeypatch.setattr(step_time, "measure", lambda config: taken.append(config) or 0.25)
    assert step_time.step_time(TOY, tmp_path) == (0.25, False)
    assert step_time.step_time(TOY, tmp_path) == (0.25, True)
    assert step_time.step_time(with_inner(batch_size=8), tmp_path) == (0.25, False)
    assert len(taken) == 2
    (tmp_path / "step_seconds.json").write_bytes(b'{"half')
    assert step_time.step_time(TOY, tmp_path) == (0.25, False)
    assert list(json.loads((tmp_path / "step_seconds.json").read_bytes()).values()) == [0.25]


def test_steps_are_taken_for_it_also_where_absent_tokens_count():
    assert step_time.measure(with_inner(absent_tokens="masked")) > 0


def test_a_step_that_is_too_large_for_this_machine_is_not_tried():
    paper = load_config("paper_16x16")
    meshes = (MeshConfig(tensor=16), MeshConfig(data=-1))  # too many, and 4 rows for 8 devices
    for mesh in meshes:
        reason = step_time.why_not_trained_here(dataclasses.replace(TOY, mesh=mesh))
        assert (reason or "").startswith("this machine cannot train it: ")
    assert "too long for a CPU" in (step_time.why_not_tried(paper, "cpu", None) or "")
    assert step_time.why_not_tried(paper, "gpu", None) is None
    assert step_time.why_not_tried(TOY, "cpu", 10**9) is None
    assert "are free here" in (step_time.why_not_tried(TOY, "cpu", 10**6) or "")


def test_bits_of_values_that_have_their_turn_are_those_of_the_mean_phase():
    """Nine phases send a ninth each, and the last of ten all, in two bits and magnitudes."""
    outer = dataclasses.replace(TOY.outer, codec="turns2", momentum=0.0)
    config = dataclasses.replace(TOY, phases=10, outer=outer)
    bits = codec_for(config).bits_per_value
    assert bits == pytest.approx(2.03 * (0.9 / 9 + 0.1), rel=1e-2)
    assert codec_for(config, "int8").bits_per_value == pytest.approx(8.125)
