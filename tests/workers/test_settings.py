"""What single settings of the published algorithm do to a run: bytes, alternations, early stopping.
That their runs equal Algorithm 1 is shown by `test_options_together.py`.
"""

import itertools

import numpy as np
import pytest

from dipaco import trees
from dipaco.algorithm import variants
from dipaco.config import MODULAR
from dipaco.control.planning.tasks import Task
from dipaco.data.pack import load_plan
from dipaco.data.windows import first_tokens
from dipaco.evaluation.perplexity import score_documents
from dipaco.outer.compress import codec_of
from dipaco.runs.errors import ReleaseOfOtherRouter
from dipaco.runs.reading.sizes import bytes_left_out
from dipaco.runs.routing import features, prefixes_of, router_of
from dipaco.serving.dispatch import Dispatcher, dispatch
from dipaco.serving.errors import ReleaseInconsistent
from dipaco.serving.models import check_consistent
from dipaco.store.tensors import load_tree
from dipaco.workers import replay
from dipaco.workers.row_plans import batches_for
from tests.workers.conftest import CONFIG, changed, digests_of, work_until


def assert_bytes_add_up(run):
    """What was sent is as much as the modules whole, without the rows left out; what was fetched is
    at most that.
    """
    arm = run.plan.arm(MODULAR)
    modules = [
        run.ledger.facts.module(MODULAR, module, phase).parameters.num_bytes
        for phase in range(CONFIG.phases)
        for path in arm.paths_in(phase)
        for module in arm.topology.modules_of(path)
    ]
    by_kind = run.ledger.progress.bytes_by_kind()
    sent = by_kind["contributions_sent"]
    assert by_kind["modules_fetched"] <= sum(modules)
    left_out = bytes_left_out(run, arm)
    # With two shards for each document, every shard here has every token.
    leaves_out = run.config.outer.vocabulary_rows == "holders" and run.config.routing.overlap == 1
    assert (left_out > 0) == leaves_out
    if run.config.outer.codec == "none":
        # A file's header is a little shorter or longer for other shapes.
        assert sent + left_out == pytest.approx(sum(modules), abs=16 * len(modules))
        return
    bits = codec_of(run.config.outer).leaf_bits
    whole = sum(
        bits(leaf.shape) / 8
        for phase in range(CONFIG.phases)
        for path in arm.paths_in(phase)
        for module in arm.topology.modules_of(path)
        for _, leaf in trees.flatten(run.parameters(MODULAR, module, phase))
    )
    assert 0 < sent + left_out - whole < 480 * len(modules)  # headers, and ends of blocks


@pytest.mark.parametrize("codec", ["none", "int2"])
def test_bytes_add_up_and_rows_are_counted_as_they_are_trained_on(begin, undisturbed, codec):
    outer = {"path_share": 0.75, "vocabulary_rows": "holders", "codec": codec}
    run = begin(changed(CONFIG, routing={"alternations": (1,)}, outer=outer))
    work_until(run, CONFIG.phases)
    assert_bytes_add_up(run)
    assert digests_of(run)[-1] != undisturbed[-1]
    arm = run.plan.arm(MODULAR)
    for phase, path in itertools.product((0, 1), range(4)):
        rows = batches_for(run, arm, path, phase).rows
        tokens = [rows[k]["tokens"][rows[k]["segments"] > 0] for k in range(len(rows))]
        counted = np.bincount(np.concatenate(tokens), minlength=CONFIG.model.vocab_size)
        told = run.token_counts(run.routing_of(MODULAR, phase))[path]
        np.testing.assert_array_equal(told, counted)


def test_an_alternation_with_labels_equal_to_the_assignment_changes_nothing(
    begin, undisturbed, monkeypatch
):
    """The law: what the paths say is made to be what the router before says."""
    run = begin(changed(CONFIG, routing={"alternations": (1, 2)}))

    def as_assigned(scores):
        assert len(list(scores)) == 4
        routing = run.stage("route")
        prefixes = first_tokens(run.corpus, run.corpus.documents("router"), 32)
        return run.router_of(routing).assign(features(run, *prefixes))[:, 0]

    monkeypatch.setattr("dipaco.workers.tasks.alternation.best_paths", as_assigned)
    work_until(run, CONFIG.phases)
    assert digests_of(run) == undisturbed
    for phase in (1, 2):
        routing, first = run.stage("route", phase), run.stage("route")
        assert routing.artifacts["router"] == first.artifacts["router"]
        assert routing.artifacts["shards"] == first.artifacts["shards"]
        assert (routing.summary["agreement"], routing.summary["moved"]) == (1.0, 0.0)


@pytest.fixture(scope="module")
def alternated(opened_in, begun):
    """A finished run with one alternation, evaluated after every phase. Nobody writes to it."""
    config = changed(CONFIG, routing={"alternations": (2,)}, evaluation={"every_phases": 1})
    run = opened_in(begun(config, "the end"), config)
    yield run
    run.ledger.close()


def test_an_alternation_fits_the_router_to_the_best_paths(alternated):
    run = alternated
    before, after = run.stage("route"), run.stage("route", 2)
    assert before.artifacts["router"] != after.artifacts["router"]
    assert run.router_of(after).kind == "discriminative"

    documents = run.corpus.documents("router")
    tokens, lengths = first_tokens(run.corpus, documents, 48)
    sums = [
        score_documents(
            run.scoring_programs.log_likelihoods(run.parts_at(MODULAR, path, 2)), tokens, lengths
        )[0]
        for path in range(4)
    ]
    labels = load_tree(run.objects, after.artifacts["labels"])
    np.testing.assert_array_equal(labels["documents"], documents)
    np.testing.assert_array_equal(labels["paths"], np.argmax(sums, axis=0))


def test_held_documents_are_routed_again_and_earlier_routings_are_kept(alternated):
    run = alternated
    before, after = (run.stage("route", phase) for phase in (0, 2))
    held, first = (load_tree(run.objects, stage.artifacts["held"]) for stage in (after, before))
    np.testing.assert_array_equal(held["documents"], first["documents"])
    of_paths = np.bincount(held["paths"][held["is_test"]], minlength=4)
    assert after.summary["test"] == of_paths.tolist()
    for stage in (before, after):  # so that the run can be explained afterwards
        plans = run.shards_of(stage).plans
        assert len(plans) == 4
        assert all(run.objects.file(plan).exists() for plan in plans)


def test_a_release_with_the_router_of_another_version_is_refused(alternated):
    run = alternated
    old, new = run.ledger.facts.release(MODULAR, 1), run.ledger.facts.release(MODULAR, 3)
    assert router_of(run, old).version != router_of(run, new).version
    mixed = new._replace(companions=old.companions)
    with pytest.raises(ReleaseOfOtherRouter, match="another router than its paths were trained"):
        router_of(run, mixed)
    with pytest.raises(ReleaseInconsistent, match="made with another router"):
        check_consistent(run, mixed)
    check_consistent(run, new)


def test_a_server_uses_the_router_of_the_release_that_it_serves(alternated):
    run, prompt = alternated, np.arange(1, 41, dtype=np.int32)
    releases = [run.ledger.facts.release(MODULAR, phase) for phase in (1, 3)]
    dispatcher = Dispatcher(run, releases[0])
    dispatcher.add_release(run, releases[1])
    told = []
    for release in releases:
        path, _, scores, _ = dispatch(run, release, prompt, None, dispatcher)
        (expected,) = router_of(run, release).scores(features(run, *prefixes_of(run, [prompt])))
        np.testing.assert_allclose(scores, expected, rtol=1e-3, atol=1e-3)
        assert path == scores.argmax()
        told.append(scores)
    assert abs(told[0] - told[1]).max() > 0.1


def test_prompts_of_a_batch_are_routed_as_each_alone(alternated):
    run = alternated
    release = run.ledger.facts.release(MODULAR, 3)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 200, rng.integers(1, 60)).astype(np.int32) for _ in range(24)]
    alone, together = Dispatcher(run, release), Dispatcher(run, release)
    expected = [dispatch(run, release, prompt, None, alone) for prompt in prompts]
    told = together.begin_all([(prompt, release, "") for prompt in prompts])
    for one, other in zip(told, expected, strict=True):
        np.testing.assert_allclose(one.scores, other.scores, rtol=1e-4, atol=1e-4)
        assert one.path == other.path == one.scores.argmax()
    assert len({one.path for one in told}) > 1


def test_a_lost_label_and_a_lost_shard_of_an_alternation_are_made_again(alternated):
    """Whose task it was is known; that it gives the same bytes is the ledger's to check."""
    label = alternated.ledger.facts.labels(MODULAR, 2)[1]
    maker = alternated.ledger.redos.maker_of(alternated.plan, label.name)
    assert maker == Task("label", MODULAR, "1", 2)
    router = alternated.stage("route", 2).artifacts["router"]
    assert alternated.ledger.redos.maker_of(alternated.plan, router.name) == Task("route", phase=2)


def test_early_stopping_releases_each_path_at_its_best_phase(begin):
    config = changed(CONFIG, inner={"hold_out": 0.1, "learning_rate": 0.3})
    run = begin(config, until="the end")
    arm, history = run.plan.arm(MODULAR), [replay.first_modules(run), *replay.replay(run)]
    assert replay.differences(run) == []
    held_out = load_tree(run.objects, run.stage("route").artifacts["held_out"])

    def loss(path, parts):
        tokens, lengths = first_tokens(run.corpus, held_out[f"{path:06d}"], 48)
        sums, counts = score_documents(run.scoring_programs.log_likelihoods(parts), tokens, lengths)
        return -sums.sum() / counts.sum()

    expected = variants.release(arm.topology, history, loss)
    release = run.ledger.facts.release(MODULAR)
    for path, parts in enumerate(expected):
        assert trees.digest(run.path_of(release, path)) == trees.digest(parts)
    best = {check.best_phase for check in run.ledger.facts.checks(MODULAR, CONFIG.phases).values()}
    assert best != {CONFIG.phases}, "such a rate makes them worse, or this shows nothing"


def test_a_run_with_every_setting_on_reaches_its_report(begin):
    run = begin(
        changed(
            CONFIG,
            inner={"hold_out": 0.2},
            outer={"path_share": 0.5},
            routing={"alternations": (1, 3), "overlap": 2},
            baselines=("dense_equal_tokens",),
        ),
        until="the end",
    )
    assert run.plan.arm("dense_equal_tokens").phases == 2 * 3
    routed = {stage.phase for stage in run.ledger.facts.stages() if stage.stage == "route"}
    assert routed == {0, 1, 3}
    assert run.ledger.progress.training_totals(MODULAR).path_phases == 2 * 3
    assert run.layout.report("json").exists()
    release = run.ledger.facts.release(MODULAR)
    assert all(run.path_of(release, path) for path in range(4))

    # What is held out trains no path, also after an alternation.
    trained, held = set(), set()
    for phase in (0, 1, 3):
        routing = run.stage("route", phase)
        for documents in load_tree(run.objects, routing.artifacts["held_out"]).values():
            held |= set(documents.tolist())
        for plan in run.shards_of(routing).plans:
            trained |= set(load_plan(run.objects.file(plan)).documents.tolist())
    assert len(held) >= 8
    assert not held & trained
    # Nor the base model and the dense one.
    everything = load_plan(run.objects.file(run.stage("prepare").artifacts["everything"])).documents
    assert not held & set(everything.tolist())
    assert trained <= set(everything.tolist())
