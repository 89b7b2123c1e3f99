"""A run through tasks, ledger and store equals Algorithm 1 in memory, bit for bit, for every way of
sharing: each module, at each phase.
"""

import dataclasses
import shutil

import jax
import pytest

from dipaco import algorithm, trees
from dipaco.config import MODULAR, BaseSettings, EvaluationSettings, RunConfig
from dipaco.control.tasks import PathTrained
from dipaco.data.config import DataConfig
from dipaco.data.prepare import prepare
from dipaco.errors import ClaimLost, ContributionOfOtherBase, SnapshotOfOtherData
from dipaco.inner.config import InnerSettings
from dipaco.inner.optimizer import learning_rates
from dipaco.model.config import ModelConfig, part_names
from dipaco.runs.programs import Programs
from dipaco.runs.run import create_or_open
from dipaco.topology import PER_PATH, Level, Topology
from dipaco.workers.executor import step_module
from dipaco.workers.heart import Heart
from dipaco.workers.loop import Worker, do
from dipaco.workers.trainer import batches_for, train

MODEL = ModelConfig(vocab_size=300, d_model=16, num_layers=1, num_heads=2, d_ff=24, max_length=48)
EVERYTHING = part_names(MODEL)
SHARINGS = {
    "2x2": (
        Level(name="early", parts=("embed",), experts=2),
        Level(name="late", parts=("block_00", "final_norm", "head"), experts=2),
    ),
    "diloco": (Level(name="all", parts=EVERYTHING), Level(name="replica", experts=3)),
    "flat_moe": (Level(name="all", parts=EVERYTHING, experts=3),),
    "grid_with_private_parts": (
        Level(name="early", parts=("embed",), experts=2),
        Level(name="late", parts=("final_norm",), experts=2),
        Level(name="own", parts=("block_00",), experts=PER_PATH),
        Level(name="stem", parts=("head",)),
    ),
}
CONFIG = RunConfig(
    name="tiny",
    model=MODEL,
    topology=Topology(levels=SHARINGS["2x2"]),
    data=DataConfig(
        sources=("toy:?documents=160&words=30",),
        vocab_size=300,
        length=48,
        valid_fraction=0.1,
        router_fraction=0.2,
        processes=1,
    ),
    base=BaseSettings(steps=2, steps_per_phase=1),
    phases=3,
    inner=InnerSettings(steps=2, batch_size=4, learning_rate=3e-3, warmup_steps=1),
    evaluation=EvaluationSettings(every_phases=3),
    baselines=(),
)


class Silent:
    """A watcher who says nothing."""

    def began(self, claim): ...
    def prepared(self, progress): ...
    def stepped(self, claim, loss, tokens): ...
    def finished(self, claim, facts): ...
    def lost(self, claim): ...
    def handed_on(self, claim, step): ...


@pytest.fixture(scope="module")
def programs():
    """Compiled once: the sharing does not change what a path computes."""
    return Programs(CONFIG)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    prepare(CONFIG.data, folder)
    return folder


@pytest.fixture
def begin(programs, corpus, tmp_path):
    """`begin(config)` -> a new run, its text prepared."""
    opened = []

    def begin(config):
        shutil.copytree(corpus, tmp_path / "run" / "corpus")
        run, _ = create_or_open(tmp_path / "run", config)
        run.programs = programs
        opened.append(run)
        return run

    yield begin
    for run in opened:
        run.ledger.close()


def work_until(run, phase):
    """Does tasks until every modular module has reached a phase."""
    modules = set(run.config.topology.modules)
    worker = worker_of(run)
    while run.ledger.modules_at(MODULAR, phase) != modules:
        assert worker.run_once()


def worker_of(run, name="test"):
    """A worker whose heart is not started: its leases last as long as the test."""
    return Worker(run, name, Silent(), Heart(run.open_ledger, name, 60.0))


def never():
    return False


@pytest.mark.parametrize("sharing", SHARINGS)
def test_every_module_at_every_phase_is_that_of_algorithm_1(begin, sharing):
    topology = Topology(levels=SHARINGS[sharing])
    run = begin(dataclasses.replace(CONFIG, topology=topology))
    work_until(run, CONFIG.phases)

    base = run.base_parts()
    arm, inner = run.plan.arm(MODULAR), run.config.inner

    def train_path(path, phase, parts, optimizer_state):
        start, end = phase * inner.steps, (phase + 1) * inner.steps
        batches = batches_for(run, arm, path)
        state = run.programs.place(parts, optimizer_state, start)
        rates = learning_rates(inner, CONFIG.phases * inner.steps, start, inner.steps)
        for step, rate in zip(range(start, end), rates, strict=True):
            state, _ = run.programs.step(state, run.programs.place_batch(batches.at(step)), rate)
        return jax.device_get((state.parts, state.optimizer))

    phases = algorithm.train(
        topology,
        {m: {part: base[part] for part in topology.parts_of(m)} for m in topology.modules},
        train_path,
        run.stage("route").summary["documents"],
        phases=CONFIG.phases,
        outer=run.config.outer,
    )
    seen = set()
    for phase, modules in enumerate(phases, start=1):
        for module in topology.modules:
            digest = trees.digest(modules[module])
            assert trees.digest(run.parameters(MODULAR, module, phase)) == digest, (module, phase)
            seen.add(digest)
    assert len(seen) == CONFIG.phases * len(topology.modules)  # and they all differ


def test_a_base_model_of_no_steps_is_the_seed_s_and_is_routed_by(begin, programs):
    run = begin(dataclasses.replace(CONFIG, base=BaseSettings(steps=0)))
    work_until(run, 1)
    assert trees.digest(run.base_parts()) == trees.digest(programs.initial_parts())


def claim_of(run, kind):
    """The next claim of a kind; what comes before it is done."""
    while True:
        claim = run.ledger.queue.claim("test")
        assert claim is not None
        if claim.task.kind == kind:
            return claim
        run.ledger.finish(run.plan, claim, do(run, claim, Silent(), never))


def without_clock(facts):
    return [
        dataclasses.replace(fact, seconds=0, snapshot=fact.snapshot._replace(name=""))
        if isinstance(fact, PathTrained)
        else fact
        for fact in facts
    ]


def test_a_task_done_twice_gives_the_same_facts_and_counts_once(begin):
    run = begin(CONFIG)
    first = claim_of(run, "train")
    facts = train(run, first, lambda loss, tokens: None)
    run.ledger.queue.give_back(first)
    second = claim_of(run, "train")
    assert (second.task, second.attempt) == (first.task, first.attempt + 1)
    again = train(run, second, lambda loss, tokens: None)
    assert without_clock(again) == without_clock(facts)
    with pytest.raises(ClaimLost):
        run.ledger.finish(run.plan, first, facts)
    run.ledger.finish(run.plan, second, again)
    with pytest.raises(ClaimLost):
        run.ledger.finish(run.plan, second, again)


def test_a_snapshot_that_counts_in_other_data_is_not_gone_on_from(begin, monkeypatch):
    run = begin(CONFIG)
    work_until(run, 1)
    claim = claim_of(run, "train")
    assert claim.task.phase == 1
    monkeypatch.setattr(run, "seed_for", lambda *names: 1)  # the rows come in another order
    with pytest.raises(SnapshotOfOtherData, match=f"path {claim.task.path} of `modular`"):
        train(run, claim, lambda loss, tokens: None)


def test_a_contribution_that_started_from_other_parameters_is_not_averaged(begin, monkeypatch):
    run = begin(CONFIG)
    claim = claim_of(run, "outer")
    arrivals = run.ledger.arrivals(MODULAR, claim.task.module, 0)
    other = [dataclasses.replace(arrivals[0], base_digest="0" * 32), *arrivals[1:]]
    monkeypatch.setattr(run.ledger, "arrivals", lambda *of: other)
    with pytest.raises(ContributionOfOtherBase, match=f"Path {arrivals[0].path} contributed"):
        step_module(run, claim)


def test_averaged_contributions_and_older_snapshots_are_swept(begin):
    run = begin(CONFIG)
    work_until(run, 2)
    left = [file for file in (run.layout.root / "objects/messages").rglob("*") if file.is_file()]
    waiting = {
        arrival.message.name
        for module in run.config.topology.modules
        for phase in range(3)
        for arrival in run.ledger.arrivals(MODULAR, module, phase)
        if module not in run.ledger.modules_at(MODULAR, phase + 1)
    }
    assert {str(file.relative_to(run.layout.root)) for file in left} == waiting
    for path in range(4):
        assert len(list((run.layout.root / f"snapshots/modular/{path:04d}").iterdir())) == 1
