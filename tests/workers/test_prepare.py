"""`prepare` in slices: the corpus of one slice, whichever workers do them and whatever is lost."""

import shutil

import pytest

from dipaco.control.planning.tasks import StageDone, Task
from dipaco.data.corpus import Corpus
from dipaco.data.tokenizer import Tokenizer
from dipaco.routing.errors import TooFewRouterDocuments
from dipaco.runs.opening import ENDS_WITH_BASE, create_or_open
from dipaco.runs.reading.sizes import sizes_of
from dipaco.runs.reading.status import status_of
from dipaco.topology import Level, Topology
from dipaco.workers.errors import OtherSources, SlicesDiffer, SourcesMissing
from dipaco.workers.keeping import collect_all
from tests.workers.conftest import CONFIG, changed, work_while, worker_of

SLICES = 3


MANY = Topology(
    levels=(*CONFIG.topology.levels, Level(name="more", experts=16))  # 64 paths
)


def config_of(slices=SLICES, sources=CONFIG.data.sources):
    return changed(CONFIG, data={"slices": slices, "sources": sources})


@pytest.fixture
def sliced(tmp_path):
    """A run that is to read its text in slices."""
    run, _ = create_or_open(tmp_path / "run", config_of())
    yield run
    run.ledger.close()


def prepare_to(run, done, *names):
    """Workers in turn, until `done` tasks of `prepare` are; which ones."""
    workers = [worker_of(run, name) for name in names or ("test",)]
    for number in range(done):
        assert workers[number % len(workers)].run_once()
    return [str(each.task) for each in run.ledger.queue.unfinished()]


def artifacts_of(run) -> dict:
    return run.stage("prepare").artifacts


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A run whose text is one slice."""
    run, _ = create_or_open(tmp_path_factory.mktemp("alone") / "run", config_of(slices=1))
    assert prepare_to(run, 4) == ["pretrain base 0 phase 0"]
    yield run
    run.ledger.close()


def test_workers_in_turn_make_the_corpus_of_one_slice(sliced, alone):
    assert prepare_to(sliced, 0) == [f"prepare read slice {n}" for n in range(SLICES)]
    assert prepare_to(sliced, 1, "ana") == ["prepare read slice 1", "prepare read slice 2"]
    assert status_of(sliced)["tasks"]["prepare read"] == {"done": 1, "ready": 2}
    assert prepare_to(sliced, 2, "bo", "ana") == ["prepare merge slice 0"]
    assert prepare_to(sliced, 1) == [f"prepare tokenise slice {n}" for n in range(SLICES)]
    texts = [each.artifacts["texts"].name for each in sliced.ledger.facts.slices("prepare", "read")]
    for number in range(1, SLICES + 1):
        prepare_to(sliced, 1, "bo" if number % 2 else "ana")
        left = set(texts) & sliced.objects.names("objects/corpora")
        assert left == set(texts[number:]), "a text is there until it is tokens"
    assert prepare_to(sliced, 0) == ["prepare"]
    assert sliced.ledger.facts.stages() == []
    assert prepare_to(sliced, 1, "bo") == ["pretrain base 0 phase 0"]
    assert artifacts_of(sliced) == artifacts_of(alone)
    summary, (fact,) = alone.stage("prepare").summary, sliced.ledger.facts.stages()
    assert fact == StageDone(
        stage="prepare", artifacts=artifacts_of(alone), summary=summary, seconds=fact.seconds
    )
    assert sizes_of(sliced)["text"] == sizes_of(alone)["text"]
    names = sliced.objects.names("objects/corpora")
    assert names == alone.objects.names("objects/corpora"), "something was left behind"


@pytest.mark.parametrize(
    ("done", "step", "artifact"),
    [
        (SLICES, "read", "texts"),
        (SLICES, "read", "table"),
        (SLICES + 1, "read", "texts"),
        (SLICES + 1, "merge", "kept"),
        (2 * SLICES + 1, "read", "table"),
        (2 * SLICES + 1, "tokenise", "tokens"),
    ],
)
def test_what_is_lost_is_made_again(sliced, alone, done, step, artifact):
    """An object, before the task that needs it."""
    prepare_to(sliced, done)
    lost = sliced.ledger.facts.slices("prepare", step)[0]
    sliced.objects.delete(lost.artifacts[artifact].name)
    work_while(lambda: not sliced.ledger.facts.stages(), worker_of(sliced))
    # Without its tokens, a slice needs its text, which is gone, too.
    assert sliced.ledger.redos.newest_refusal() == 1 + (artifact == "tokens")
    assert artifacts_of(sliced) == artifacts_of(alone)


def test_a_killed_task_goes_on_with_the_tokens_that_it_has_saved(sliced, alone, monkeypatch):
    monkeypatch.setattr("dipaco.data.encode.CHUNK_BYTES", 1000)
    monkeypatch.setattr("dipaco.data.encode.CHUNKS_SAVED_AT_ONCE", 2)
    prepare_to(sliced, SLICES + 1)
    encoded, encode = [], Tokenizer.encode

    def killed(tokenizer, texts):
        if len(encoded) == 5:
            raise KeyboardInterrupt
        encoded.append(len(texts))
        return encode(tokenizer, texts)

    with monkeypatch.context() as patch:
        patch.setattr(Tokenizer, "encode", killed)
        with pytest.raises(KeyboardInterrupt):
            prepare_to(sliced, 1)
    seen = []
    monkeypatch.setattr(
        Tokenizer, "encode", lambda *given: seen.append(len(given[1])) or encode(*given)
    )
    sliced.ledger.queue.give_back_all()
    prepare_to(sliced, 1)
    (first, *_) = sliced.ledger.facts.slices("prepare", "tokenise")
    assert sum(seen) == first.summary["documents"] - sum(encoded[:4])
    prepare_to(sliced, SLICES)
    assert artifacts_of(sliced) == artifacts_of(alone)
    assert not sliced.layout.slices.exists()


def test_a_corpus_that_is_lost_later_is_made_by_one_task(sliced, alone):
    prepare_to(sliced, 2 * SLICES + 2)
    shutil.rmtree(sliced.layout.corpus)
    with sliced.ledger._database.transaction():
        sliced.ledger._database.change("redo_task", **Task("prepare")._asdict())
    prepare_to(sliced, 1)
    assert Corpus.open(sliced.layout.corpus).digest == alone.corpus.digest


def test_what_a_crash_left_of_slices_is_deleted_later(sliced, alone, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("dipaco.workers.keeping.delete_slices", lambda _: None)
        patch.setattr("dipaco.workers.keeping.superseded_text", lambda *_: [])
        prepare_to(sliced, 2 * SLICES + 2)
    assert len(sliced.objects.names("objects/corpora")) > 4 * SLICES, "their texts as well"
    collect_all(sliced)
    assert sliced.objects.names("objects/corpora") == alone.objects.names("objects/corpora")


def test_a_prepared_corpus_is_not_read_again_in_slices(begin):
    run = begin(config_of())
    assert prepare_to(run, 0) == ["prepare"]
    assert prepare_to(run, 1) == ["pretrain base 0 phase 0"]


@pytest.mark.parametrize("text", ["in one slice", "in slices", "prepared by another run"])
@pytest.mark.parametrize("given", [{}, {ENDS_WITH_BASE: True}])
def test_too_few_documents_for_the_router_are_said_before_a_base_model_is_trained(
    tmp_path, corpus, text, given
):
    """Not of a run of which others take the base model: those may have fewer paths."""
    slices, is_there = SLICES if text == "in slices" else 1, text == "prepared by another run"
    if is_there:
        shutil.copytree(corpus, tmp_path / "run" / "corpus")
    run, _ = create_or_open(tmp_path / "run", changed(config_of(slices), topology=MANY), given)
    if given:
        done = 1 if is_there else 2 * slices + 2
        assert prepare_to(run, done) == ["pretrain base 0 phase 0"]
        assert run.corpus.manifest.documents["router"] < run.config.num_paths
    else:
        prepare_to(run, 1 if is_there else slices + 1)
        (failure,) = run.ledger.failures.list()
        assert failure.reason.startswith(f"{TooFewRouterDocuments.__name__}: ")
        assert is_there or not (run.layout.corpus / "manifest.json").exists()
    run.ledger.close()


@pytest.fixture
def files(tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    for number in range(SLICES):
        (folder / f"{number}.txt").write_text(f"some text {number} " * 500)
    run, _ = create_or_open(tmp_path / "run", config_of(sources=(f"text:{folder}",)))
    yield run, folder
    run.ledger.close()


def test_a_machine_without_the_files_reads_none_and_the_slice_does_not_fail_for_good(files):
    run, folder = files
    prepare_to(run, 1)
    shutil.rmtree(folder)
    with pytest.raises(SourcesMissing, match=r"and this one cannot: .* Give it the same files"):
        prepare_to(run, 1)
    assert not run.ledger.failures.list()


def test_a_machine_that_sees_other_files_reads_none(files):
    run, folder = files
    prepare_to(run, 1)
    (folder / "1.txt").write_text("shorter")
    with pytest.raises(OtherSources, match=r"3 files of \d+ bytes, there 3 of \d+"):
        prepare_to(run, 1)
    assert len(prepare_to(run, 0)) == 2, "nothing was recorded"


def test_slices_of_different_files_are_not_merged(files, monkeypatch):
    run, folder = files
    prepare_to(run, 1)
    (folder / "1.txt").write_text("shorter")
    with monkeypatch.context() as patch:  # as if they had been read at the same moment
        patch.setattr("dipaco.control.facts.facts.Facts.slices", lambda *_: [])
        prepare_to(run, 2)
    prepare_to(run, 1)
    (failure,) = run.ledger.failures.list()
    assert failure.reason.startswith(f"{SlicesDiffer.__name__}: Slice 1 of the text was read from")
