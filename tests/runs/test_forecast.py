"""What a run will need, from its config: bytes by hand, times by one formula, what a step takes."""

import dataclasses
import functools
from pathlib import Path

import jax
import pytest

from dipaco.config import DATA_PARALLEL, DENSE, DENSE_EQUAL_TOKENS, MODULAR
from dipaco.evaluation.tables import seconds_over_link
from dipaco.model.config import MeshConfig, num_parameters, part_parameters
from dipaco.model.spec import part_names
from dipaco.model.splash import attend_on_tpu
from dipaco.outer.compress import BY_NAME
from dipaco.overrides import load_config, override
from dipaco.runs.forecast import compiled, step_time
from dipaco.runs.forecast.devices import KINDS, named, on_devices
from dipaco.runs.forecast.forecast import Machines, forecast, phase_time
from dipaco.runs.forecast.hlo import moved_bytes
from dipaco.runs.forecast.memory import activation_bytes, step_flops, step_memory, worker_memory
from dipaco.runs.forecast.traffic import (
    Traffic,
    base_bytes,
    kept_bytes,
    lock_step_traffic,
    machine_bytes,
    module_parameters,
    total,
    traffic_of_a_phase,
)
from dipaco.shipped import shipped_files
from dipaco.topology import Level, Topology

TOY = load_config("toy")
SIZE = 4 * num_parameters(TOY.model)  # bytes of a path
SNAPSHOT = 0.9 * 2 * SIZE
ON_20 = Machines(workers=4, megabits=20.0, step_seconds=2.0)


def time_of(config, given, longer=1):
    traffic = traffic_of_a_phase(config, given.workers, steps_elsewhere=given.steps_elsewhere)
    return phase_time(config, given, traffic, longer)


def test_one_machine_only_sends_to_the_bucket_and_fetches_nothing():
    """Four paths with their AdamW states and contributions, and all modules with their momentum."""
    modules = 4 * sum(module_parameters(TOY).values())
    assert traffic_of_a_phase(TOY, 1) == {
        "modules": Traffic(0.0, modules),
        "contributions": Traffic(0.0, 4 * SIZE),
        "snapshots": Traffic(0.0, 4 * SNAPSHOT),
        "outer states": Traffic(0.0, modules),
    }


def test_a_machine_for_each_path_fetches_what_others_have_stepped():
    """It steps one of four modules, whose paths send half of two paths' bytes; with the chance of a
    half it trains a path through that module, and has it. Its snapshot is its own.
    """
    traffic = traffic_of_a_phase(TOY, 4)
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
        snapshots = traffic_of_a_phase(config, 4)["snapshots"]
        assert snapshots == (0.0, pytest.approx(SNAPSHOT * sent / phases))
        of_last = traffic_of_a_phase(config, 4, phases=[phases - 1])["snapshots"]
        assert of_last == (0.0, pytest.approx(SNAPSHOT))


def test_modules_come_whole_before_the_first_phase_and_then_as_what_was_sent():
    config = override(TOY, ["outer.codec=int2", "phases=3"])
    first, second = (
        traffic_of_a_phase(config, 4, steps_elsewhere=True, phases=[phase]) for phase in (0, 1)
    )
    assert first["modules"].down == SIZE
    assert second["modules"].down == pytest.approx(BY_NAME["int2"].bits_per_value / 32 * SIZE)


@pytest.mark.parametrize("name", ["bfloat16", "int8", "int4", "int2"])
def test_a_codec_takes_its_bits_and_leaves_a_residual_in_the_snapshot(name):
    plain, coded = traffic_of_a_phase(TOY, 4), traffic_of_a_phase(TOY, 4, codec_name=name)
    share = BY_NAME[name].bits_per_value / 32
    assert coded["contributions"] == pytest.approx(tuple(plain["contributions"].times(share)))
    assert coded["snapshots"].up == pytest.approx(1.5 * plain["snapshots"].up)
    assert traffic_of_a_phase(override(TOY, f"outer.codec={name}"), 4) == coded


def test_a_module_comes_as_the_contributions_of_other_paths_where_that_is_less():
    """In 2x2 one of two; and then the machine has the outer state of its own modules too. Without a
    codec that is as many bytes as the module, which comes whole.
    """
    plain, coded = (traffic_of_a_phase(TOY, 4, codec_name=name) for name in ("none", "int4"))
    share = BY_NAME["int4"].bits_per_value / 32
    saved = 0.75 * SIZE * (1 - share) / 2  # at the second of two phases: before, all comes whole
    assert plain["modules"].down - coded["modules"].down == pytest.approx(saved)
    assert coded["outer states"].down == pytest.approx(plain["outer states"].down / 2)


def test_an_executor_beside_the_bucket_takes_the_outer_steps_off_the_links():
    traffic = traffic_of_a_phase(TOY, 4, steps_elsewhere=True)
    assert traffic["outer states"] == Traffic(0.0, 0.0)
    assert traffic["modules"] == Traffic(SIZE, 0.0)
    assert traffic["contributions"] == Traffic(0.0, SIZE)


def test_a_delay_hides_the_way_of_the_modules_where_executors_step_them():
    late = override(TOY, "outer.delay=1")
    slow = dataclasses.replace(ON_20, megabits=0.01)
    assert time_of(late, slow).hidden_seconds == 0
    assert time_of(late, dataclasses.replace(slow, steps_elsewhere=True)).hidden_seconds == 2.0
    fast = time_of(late, dataclasses.replace(ON_20, steps_elsewhere=True))
    assert fast.transfer_seconds > fast.hidden_seconds, "snapshots and contributions stay"
    own = traffic_of_a_phase(late, 4)["snapshots"]
    assert own.up == pytest.approx(1.5 * SNAPSHOT), "the path's own parameters are in it"


def test_without_momentum_there_is_no_outer_state():
    traffic = traffic_of_a_phase(override(TOY, "outer.momentum=0"), 4)
    assert traffic["outer states"] == Traffic(0.0, 0.0)


def test_a_phase_is_steps_and_bytes_over_the_link():
    """One machine trains four paths. Three machines take as long as two paths take one of them."""
    alone = dataclasses.replace(ON_20, workers=1)
    time, bytes_of_phase = time_of(TOY, alone), sum(total(traffic_of_a_phase(TOY, 1).values()))
    assert time.computing_seconds == 4 * TOY.inner.steps * 2.0
    assert time.seconds == pytest.approx(
        seconds_over_link(4 * TOY.inner.steps * 2.0, bytes_of_phase, 20.0)
    )
    assert time.computing == pytest.approx(time.computing_seconds / time.seconds)
    fast = dataclasses.replace(ON_20, megabits=1e6, workers=3)
    assert time_of(TOY, fast).computing == pytest.approx(4 / (3 * 2), rel=1e-3)


def test_lock_step_sends_a_gradient_and_fetches_the_mean_at_every_step():
    traffic = lock_step_traffic(TOY, 4, range(2))
    assert traffic == {
        "gradients": Traffic(TOY.inner.steps * SIZE, TOY.inner.steps * SIZE),
        # Each fetches the base model once. One of the four stores model and moments.
        "modules": Traffic(0.75 * SIZE / 2, SIZE / 4),
        "snapshots": Traffic(0.0, SNAPSHOT / 4),
    }
    time = phase_time(TOY, ON_20, traffic)
    assert time.seconds == seconds_over_link(
        TOY.inner.steps * 2.0, sum(total(traffic.values())), 20.0
    )
    assert sum(total(lock_step_traffic(TOY, 1, range(2)).values())) == 0
    together = override(TOY, "outer.synchronous=true")
    stored = sum(module_parameters(TOY).values()) / num_parameters(TOY.model)
    assert traffic_of_a_phase(together, 4) == lock_step_traffic(TOY, 4, range(2)) | {
        "modules": Traffic(0.75 * SIZE / 2, stored * SIZE / 4),
        "snapshots": Traffic(0.0, stored * SNAPSHOT / 4),
    }


def test_the_bytes_of_a_machine_are_its_phases_and_its_share_of_the_base_model():
    """Of the base model's two saves. A machine that trains alone exchanges nothing."""
    of_base = 2 * (SIZE + SNAPSHOT)
    assert base_bytes(TOY) == pytest.approx(of_base)
    known = [machine_bytes(TOY, MODULAR, phase, of_base) for phase in range(3)]
    both = sum(sum(each) for each in traffic_of_a_phase(TOY, 4).values())
    assert known[0] == pytest.approx(of_base / 4)
    assert known[2] == pytest.approx(of_base / 4 + 2 * both)
    assert known[1] < known[2]
    in_lock_step = sum(sum(each) for each in lock_step_traffic(TOY, 4, range(2)).values())
    bytes_of = functools.partial(machine_bytes, TOY, phase=2, of_base=of_base)
    assert bytes_of(DATA_PARALLEL) == pytest.approx(of_base / 4 + 2 * in_lock_step)
    assert bytes_of(DENSE) == bytes_of(DENSE_EQUAL_TOKENS) == 0
    alone = load_config("baseline_dense")
    assert machine_bytes(alone, MODULAR, alone.phases, base_bytes(alone)) == 0
    assert forecast(alone).run_bytes == 0
    assert set(traffic_of_a_phase(alone, 1).values()) == {Traffic(0.0, 0.0)}


def test_longer_phases_and_faster_links_bring_computing():
    usual = time_of(TOY, ON_20)
    assert time_of(TOY, ON_20, longer=2).computing > usual.computing
    faster = time_of(TOY, dataclasses.replace(ON_20, megabits=100.0))
    assert faster.transfer_seconds == pytest.approx(usual.transfer_seconds / 5)


def test_the_busiest_link_is_the_one_that_takes_longest():
    usual = time_of(TOY, ON_20)
    slow_store = time_of(TOY, dataclasses.replace(ON_20, store_megabits=20.0))
    of_machine = sum(total(traffic_of_a_phase(TOY, 4).values()))
    assert slow_store.transfer_seconds == seconds_over_link(0.0, 4 * of_machine, 20.0)
    wide_store = time_of(TOY, dataclasses.replace(ON_20, store_megabits=1e6))
    assert wide_store == usual
    links = [each.busiest_link for each in (usual, slow_store, wide_store)]
    assert links == ["late/0000", "bucket", "late/0000"], "it has a norm more than the others"
    two = dataclasses.replace(ON_20, workers=2)
    assert time_of(TOY, two).busiest_link == "machine", "each steps two modules"


def test_machines_beyond_one_for_each_path_wait():
    assert traffic_of_a_phase(TOY, 400) == traffic_of_a_phase(TOY, 4)
    many = dataclasses.replace(ON_20, workers=400)
    assert time_of(TOY, many) == time_of(TOY, ON_20)


def test_the_run_is_the_base_model_and_its_phases():
    found = forecast(TOY, workers=4, megabits=20.0, step_seconds=2.0)
    seconds = TOY.base.steps * 2.0 + TOY.phases * found.phase_seconds
    assert found.run_hours == pytest.approx(seconds / 3600)
    of_phases = TOY.phases * (found.bytes_down + found.bytes_up)
    assert found.run_bytes == pytest.approx(of_phases + found.base_bytes, abs=9)
    steps = TOY.base.steps + 4 * TOY.phases * TOY.inner.steps
    assert found.run_flops == steps * found.step_flops


def test_a_bucket_keeps_what_the_retention_says():
    """With three phases of two kept, the first is gone, unless it is evaluated."""
    keep = dataclasses.replace(TOY.retention, modules=2, snapshots=1, contributions=1)
    evaluation = dataclasses.replace(TOY.evaluation, every_phases=3)
    config = dataclasses.replace(TOY, phases=3, retention=keep, evaluation=evaluation)
    modules = 4 * sum(module_parameters(TOY).values())
    assert kept_bytes(config) == {
        "modules": 2 * modules,
        "contributions": 4 * SIZE,
        "snapshots": round(4 * SNAPSHOT),
        "outer states": 2 * modules,
        # Of 4 paths, 4 modules and 8 contributions: tasks and facts.
        "ledger": 3 * 1200 * (2 * 4 + 2 * 4 + 8),
    }
    every = dataclasses.replace(evaluation, every_phases=1)
    kept = kept_bytes(dataclasses.replace(config, evaluation=every))
    assert kept["modules"] == 3 * modules
    everything = dataclasses.replace(keep, modules=None, snapshots=None, contributions=None)
    kept = kept_bytes(dataclasses.replace(config, retention=everything))
    assert kept["modules"] == 4 * modules
    assert kept["snapshots"] == round(3 * 4 * SNAPSHOT)


def test_the_plan_of_the_papers_largest_run_holds_by_hand(monkeypatch):
    """256 paths of 176 M (embedding and head of 32,000 x 896, twelve blocks), 289 modules. On links
    of 20 Mbit/s the module that all paths share takes most of a phase.
    """
    block = 4 * 896 * 1024 + 3 * 896 * 2304 + 2 * 896
    embedding, root = 32_000 * 896, 32_000 * 896 + 896
    path = embedding + 12 * block + root
    private, shared = embedding + 4 * block, 4 * block
    every = 256 * private + 32 * shared + root
    monkeypatch.syspath_prepend("configs")
    config = load_config(Path("configs/paper_16x16.py"))
    found = forecast(config, megabits=20.0, step_seconds=1.0)
    assert found.parameters_per_path == path == 175_724_416
    assert found.parameters_total == every
    assert 18.7e9 < every < 18.8e9
    # Disk. Evaluated at 20, 40, ... 420 and 427, and 425 to 427 are the newest. Each path may
    # be at its best in a phase of its own, at each of 21 earlier releases and now.
    copies = {"private": 3 + 21 * 2 + 1, "shared": 3 + 21 * 17 + 16, "root": 428}
    assert found.kept_bytes == {
        "modules": 4
        * (
            256 * private * copies["private"]
            + 32 * shared * copies["shared"]
            + root * copies["root"]
        ),
        "contributions": 2 * 256 * 4 * path,
        "snapshots": round(3 * 256 * 0.9 * 8 * path),
        "outer states": 3 * 4 * every,
        "ledger": 427 * 1200 * (2 * 256 + 4 * 256 + 2 * 289),
    }
    assert 6.6e12 < sum(found.kept_bytes.values()) < 6.8e12
    # Bytes. Of the root, contributions of 255 paths and its state come from other machines. It and
    # its state are sent.
    of_root = 4 * root * (255 + 255 / 256 + 2)
    assert found.largest_step == found.busiest_link == "root/0000"
    assert found.largest_step_bytes == pytest.approx(of_root)
    # That machine trains a path too: it fetches all of it but its private parts, whose only
    # contribution is its own, and sends contributions and a snapshot.
    of_path = 4 * (255 / 256 * (path - private) + path * (1 + 1.8))
    assert found.transfer_seconds == pytest.approx((of_root + of_path) * 8 / 20e6, rel=1e-3)
    assert 3.5 * 3600 < found.transfer_seconds < 3.6 * 3600
    assert found.run_hours == pytest.approx((24_000 + 427 * found.phase_seconds) / 3600)
    # Executors beside the bucket: one has as much to take. No wider link is said at first.
    beside = forecast(config, megabits=20.0, step_seconds=1.0, steps_elsewhere=True)
    of_root = 4 * root * (256 + 1 + 1 + 1 + 1)
    assert beside.busiest_link == "root/0000"
    assert beside.transfer_seconds == pytest.approx(of_root * 8 / 20e6)
    wide = forecast(
        config, megabits=20.0, store_megabits=10_000.0, step_seconds=1.0, steps_elsewhere=True
    )
    assert wide.busiest_link == "machine"
    assert wide.transfer_seconds == pytest.approx((wide.bytes_down + wide.bytes_up) * 8 / 20e6)
    narrow = forecast(
        config, megabits=20.0, store_megabits=1000.0, step_seconds=1.0, steps_elsewhere=True
    )
    # Paths send contributions and snapshots, executors fetch these and each module and state.
    of_paths = 256 * 4 * (path - private + path * (1 + 1.8))
    of_executors = 256 * 4 * path + 4 * every * 4
    assert narrow.busiest_link == "bucket"
    assert narrow.transfer_seconds == pytest.approx((of_paths + of_executors) * 8 / 1e9, rel=1e-3)


def test_memory_is_parameters_gradient_two_moments_and_what_the_phase_began_with():
    memory = worker_memory(TOY)
    exact = {name: count for name, count in memory.items() if not name.startswith("activations")}
    assert list(exact.values()) == [SIZE, SIZE, 2 * SIZE, SIZE]
    coded = worker_memory(override(TOY, "outer.codec=int8"))
    assert sum(coded.values()) == SIZE + sum(memory.values())
    assert step_memory(TOY) == 3 * 4 * max(module_parameters(TOY).values())


def test_activations_are_fewer_in_pieces_and_when_they_are_made_again():
    plain = activation_bytes(TOY)
    assert activation_bytes(override(TOY, "inner.accumulation_steps=4")) == plain // 4
    assert activation_bytes(override(TOY, "inner.rematerialise=true")) < plain
    assert activation_bytes(override(TOY, "inner.loss_chunks=4")) < plain


def test_memory_is_near_what_was_measured_for_a_path_of_the_papers_size():
    """Gigabytes of `tools/bench_memory.py --rows 4 --steps 1`, as the tools' page has them."""
    paper, plain = load_config("paper_2x4"), {"rematerialise": False, "loss_chunks": 1}
    for settings, measured in (
        ({}, 12.71),
        ({"loss_chunks": 8}, 12.11),
        ({"accumulation_steps": 4}, 6.50),
        ({"rematerialise": True}, 5.65),
    ):
        inner = dataclasses.replace(paper.inner, batch_size=4, **(plain | settings))
        memory = sum(worker_memory(dataclasses.replace(paper, inner=inner)).values()) / 1e9
        assert memory == pytest.approx(measured, rel=0.25), settings


@pytest.mark.contract
def test_the_compiler_tells_the_memory_of_a_step_once(monkeypatch, tmp_path):
    """It neither reads nor keeps a program: JAX reads none again for devices that are not here."""
    monkeypatch.setenv("DIPACO_CACHE", str(tmp_path))
    told = []
    jax.monitoring.register_event_listener(lambda event, **_: told.append(event))
    needs = compiled.needs_of(TOY, jax.devices(), compiled.TRAINING)
    asked = "/jax/compilation_cache/compile_requests_use_cache"
    assert asked not in told
    jax.jit(lambda x: x + 17)(1)
    assert asked in told  # others are kept as before
    assert 3 * SIZE < needs.memory < sum(worker_memory(TOY).values())
    assert needs.model_flops == step_flops(TOY) == pytest.approx(needs.flops, rel=0.25)
    assert needs.moved is None  # its text is no TPU's
    monkeypatch.setattr(compiled, "Programs", None)
    assert compiled.needs_of(TOY, jax.devices(), compiled.TRAINING) == needs


def test_a_kernel_does_no_operations_of_blocks_that_its_mask_leaves_out():
    """Two products over three of the four pairs of 512 tokens, and five of the gradient, which has
    all 1,024 keys in one block.
    """
    heads = jax.ShapeDtypeStruct((2, 1024, 4, 64), "bfloat16")
    attend = functools.partial(attend_on_tpu, segments_BT=None, is_interpreted=True)
    product = 2 * 2 * 4 * 1024 * 1024 * 64
    backward = jax.grad(lambda q, k, v: attend(q, k, v).sum(), (0, 1, 2))
    for program, products in ((attend, 1.5), (backward, 1.5 + 5)):
        traced = jax.jit(program).trace(heads, heads, heads).jaxpr
        found = compiled.flops_of(traced.jaxpr)
        assert found == pytest.approx(products * product, rel=1e-3)


@pytest.fixture
def compiler(monkeypatch):
    """The one for TPUs, whose variables are put back."""
    pytest.importorskip("libtpu")
    for variable in compiled.ONLY_COMPILES:
        monkeypatch.setenv(variable, "")


@pytest.mark.contract
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("name", [each for each, kind in KINDS.items() if kind.least])
def test_the_compiler_knows_as_many_devices_as_a_slice_of_each_kind_has(name):
    assert len(compiled.devices_of(named(name))) == named(name).number


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
@pytest.mark.timeout(1800)  # a minute or two of compiling, on machines that may be busy
@pytest.mark.parametrize(("name", "use"), [("v5e:2x4", 0.70), ("v6e:2x2", 0.30)])
def test_the_papers_step_in_its_widths_fits_the_devices_that_its_config_names(name, use):
    """Two of its blocks. Another keeps its parameters, their moments and gradient, its input, and
    attention's values and results, whose heads are filled up to 128 values.
    """
    device, paper = named(name), on_devices(load_config("paper_2x4"), named(name).number)
    model = dataclasses.replace(paper.model, num_layers=2)
    levels = (Level(name="all", parts=part_names(model)),)
    two = dataclasses.replace(paper, model=model, topology=Topology(levels=levels))
    needs = compiled.needs_of(two, compiled.devices_of(device), compiled.TRAINING)
    others = paper.model.num_layers - 2
    values = 4 * model.d_model + 2 * 2 * 128 * model.num_heads
    kept = paper.inner.batch_size * paper.data.length // device.number * values
    kept += 4 * 4 * part_parameters(model)["block_00"]
    assert needs.memory + others * kept < device.kind.memory
    again = (needs.flops - needs.model_flops) * paper.model.num_layers / 2
    assert again < 0.2 * step_flops(paper) / device.number
    seconds = max(needs.flops / device.kind.flops, needs.moved / device.kind.bandwidth)
    assert needs.model_flops > use * device.kind.flops * seconds


PROGRAM = """
%body (arg: (s32[], f32[8,128,64])) -> (s32[], f32[8,128,64]) {
  %arg = (s32[]{:T(128)}, f32[8,128,64]{2,1,0:T(8,128)}) parameter(0)
  %part = f32[1,128,64]{2,1,0:T(8,128)S(1)} fusion(%all, %turn), kind=kLoop, calls=%sliced
  %turn = s32[]{:T(128)S(6)} get-tuple-element(%arg), index=0
  %all = f32[8,128,64]{2,1,0:T(8,128)} get-tuple-element(%arg), index=1
  ROOT %next = (s32[], f32[8,128,64]{2,1,0:T(8,128)}) tuple(%turn, %all)
}
%sliced (param_0: f32[8,128,64], param_1: s32[]) -> f32[1,128,64] {
  %param_0 = f32[8,128,64]{2,1,0:T(8,128)} parameter(0)
  %param_1 = s32[]{:T(128)S(6)} parameter(1)
  ROOT %slice = f32[1,128,64]{2,1,0:T(8,128)} dynamic-slice(%param_0, %param_1), metadata={}
}
%condition (arg: (s32[], f32[8,128,64])) -> pred[] {
  %turns = s32[]{:T(128)} constant(8)
}
ENTRY %main (x: f32[8,128,64]) -> f32[8,128,64] {
  %x = f32[8,128,64]{2,1,0:T(8,128)} parameter(0)
  %copy-start = (bf16[16]{0:T(16)S(1)}, bf16[16]{0:T(16)}, u32[]{:S(2)}) copy-start(%x)
  %noted = f32[8,128,64]{2,1,0:T(8,128)} custom-call(%x), custom_call_target="ConcatBitcast"
  %loop = (s32[], f32[8,128,64]) while(%x), condition=%condition, body=%body
  ROOT %sum = f32[8]{0:T(8)} reduce(%x), dimensions={1,2}
}
"""


NESTED = """
%nested (param_0.1: s32[], param_1.1: f32[8,128,64]) -> f32[8,128,64] {
  %param_0.1 = s32[]{:T(128)S(6)} parameter(0)
  %param_1.1 = f32[8,128,64]{2,1,0:T(8,128)} parameter(1)
  %same = f32[8,128,64]{2,1,0:T(8,128)} bitcast(%param_1.1)
  %inner = f32[1,128,64]{2,1,0:T(8,128)} fusion(%same, %param_0.1), kind=kLoop, calls=%sliced
  ROOT %updated = f32[8,128,64]{2,1,0:T(8,128)} fusion(%param_0.1, %same, %inner), calls=%update
}
%update (param_0.2: s32[], param_1.2: f32[8,128,64], param_2.2: f32[1,128,64]) -> f32[8,128,64] {
  %param_0.2 = s32[]{:T(128)S(6)} parameter(0)
  %param_1.2 = f32[8,128,64]{2,1,0:T(8,128)} parameter(1)
  %param_2.2 = f32[1,128,64]{2,1,0:T(8,128)} parameter(2)
  ROOT %in_place = f32[8,128,64]{2,1,0:T(8,128)} dynamic-update-slice(%param_1.2, %param_2.2)
}
"""


def test_a_loop_moves_what_it_slices_at_every_turn_and_nothing_on_the_chip():
    whole, copied, result = 4 * 8 * 128 * 128, 2 * 16, 4 * 8  # 64 columns fill a tile of 128
    assert moved_bytes(PROGRAM) == copied + 8 * whole // 8 + whole + result
    once = "%part = f32[8,128,64]{2,1,0:T(8,128)} fusion(%turn, %all), kind=kLoop, calls=%nested"
    part = next(line.strip() for line in PROGRAM.splitlines() if "%part" in line)
    nested = NESTED + PROGRAM.replace(part, once)
    assert moved_bytes(nested) == copied + 8 * 2 * whole // 8 + whole + result, "read and written"


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
