"""The corpus: the same bytes however it was prepared, and all damage is found."""

import dataclasses
import json
import os
import re
import resource
import signal
import subprocess
import sys

import numpy as np
import pytest

from dipaco.data import corpus_writing, encode, splits
from dipaco.data.config import CorpusConfig
from dipaco.data.corpus import Corpus
from dipaco.data.errors import (
    BadTokenizer,
    CorpusDamaged,
    CorpusOfOtherSettings,
    EmptyCorpus,
    EmptySplit,
    HalfCharacter,
)
from dipaco.data.prepare import prepare
from dipaco.data.reading import PrepareProgress, read_slice
from dipaco.data.slices import cut_into_slices
from dipaco.data.splits import SPLITS, first_of_each
from dipaco.data.tokenizer import given_tokenizer, load_tokenizer, train_tokenizer
from dipaco.errors import CorpusMissing, NotWritable

TOY = CorpusConfig(sources=("toy:?documents=80",), vocab_size=300, processes=1)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Many chunks and several token files from little text."""
    monkeypatch.setattr(encode, "CHUNK_BYTES", 10_000)
    monkeypatch.setattr(encode, "CHUNKS_SAVED_AT_ONCE", 2)
    monkeypatch.setattr(corpus_writing, "FILE_BYTES", 12_000)


@pytest.fixture
def undisturbed(tmp_path):
    return prepare(TOY, tmp_path / "undisturbed")


def from_lines(tmp_path, rows, **settings):
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    return CorpusConfig(sources=(f"jsonl:{file}",), vocab_size=300, processes=1, **settings)


def words(number, count=120):
    return " ".join(f"w{number}x{i * number % 89}" for i in range(count))


# --- what is in it ----------------------------------------------------------------------------


def test_decoded_tokens_are_the_documents(undisturbed):
    from dipaco.data.toy import toy_documents

    texts = [document.text for document in toy_documents(documents=80)]
    tokens = undisturbed.tokens(range(undisturbed.num_documents))
    assert [undisturbed.tokenizer().decode(t) for t in tokens] == texts
    assert [len(t) for t in tokens] == undisturbed.lengths.tolist()
    assert len(undisturbed.manifest.files) > 1


def test_documents_come_in_the_order_asked_for_from_several_files(undisturbed):
    numbers = [79, 0, 41, 0]
    together = undisturbed.tokens(numbers)
    for number, tokens in zip(numbers, together, strict=True):
        np.testing.assert_array_equal(tokens, undisturbed.tokens([number])[0])


def test_the_manifest_counts_what_the_arrays_hold(undisturbed):
    manifest = undisturbed.manifest
    assert sum(manifest.documents.values()) == undisturbed.num_documents == 80
    assert manifest.tokens == undisturbed.lengths.sum() == sum(d.tokens for d in manifest.domains)
    assert [d.name for d in manifest.domains] == ["toy_00", "toy_01", "toy_02", "toy_03"]
    assert len(undisturbed.documents("test")) == manifest.documents["test"]


def test_a_group_is_in_one_split_only(tmp_path):
    rows = [{"text": words(i), "book": i // 4} for i in range(1, 121)]
    config = from_lines(tmp_path, rows, held_fraction=0.3, router_fraction=0.3)
    config = dataclasses.replace(config, sources=(f"{config.sources[0]}?group=book",))
    corpus = prepare(config, tmp_path / "corpus")
    books = np.arange(1, 121) // 4
    for book in np.unique(books):
        assert len(np.unique(corpus.splits[books == book])) == 1


def test_exact_duplicates_are_dropped_and_counted(tmp_path):
    rows = [{"text": words(i % 60)} for i in range(1, 101)]
    corpus = prepare(from_lines(tmp_path, rows, held_fraction=0.2, router_fraction=0.2), tmp_path)
    assert (corpus.num_documents, corpus.manifest.duplicates) == (60, 40)
    (note,) = corpus.manifest.notes
    assert note.endswith("has the same text: 40 documents, 31.9 kB of 80.1 kB.")


def test_the_first_of_equal_hashes_is_kept_for_any_number_of_parts(monkeypatch):
    hashes = np.random.default_rng(0).integers(0, 50, 300).astype(np.uint64)
    wanted = [h not in hashes[:i] for i, h in enumerate(hashes)]
    for at_once in (1 << 20, 70):
        monkeypatch.setattr(splits, "HASHES_AT_ONCE", at_once)
        assert first_of_each(hashes).tolist() == wanted


def test_short_documents_train_but_are_not_evaluated(tmp_path):
    rows = [{"text": words(i, count=3 if i % 2 else 120)} for i in range(1, 201)]
    config = from_lines(tmp_path, rows, held_fraction=0.2, router_fraction=0.2)
    corpus = prepare(config, tmp_path / "corpus")
    for split in ("tune", "test", "router"):
        assert (corpus.lengths[corpus.documents(split)] > 32).all()
    assert (corpus.lengths[corpus.documents("train")] <= 32).any()
    short = corpus.manifest.short
    assert short == len(corpus.documents("short")) > 0
    assert any(f": {short} documents drawn" in note for note in corpus.manifest.notes)


def test_a_cap_bounds_every_domain(tmp_path):
    corpus = prepare(dataclasses.replace(TOY, max_bytes_per_domain=9000), tmp_path)
    assert all(9000 <= domain.num_bytes < 9000 + 8192 for domain in corpus.manifest.domains)
    note, _ = corpus.manifest.notes  # the other one says that the text repeats itself
    start = "Left out, beyond `data.max_bytes_per_domain` (9.0 kB): "
    assert note.startswith(start)
    # Of each domain: what is left out, and what there is.
    left, of = (float(re.findall("([0-9.]+) kB", note)[number]) for number in (1, 2))
    whole = prepare(TOY, tmp_path / "whole")
    largest = max(whole.manifest.domains, key=lambda domain: domain.num_bytes)
    kept = {domain.name: domain.num_bytes for domain in corpus.manifest.domains}
    assert of == pytest.approx(largest.num_bytes / 1000, abs=0.1)
    assert left == pytest.approx((largest.num_bytes - kept[largest.name]) / 1000, abs=0.1)
    assert f"of `{largest.name}`" in note


def test_own_text_has_no_cap_unless_it_is_set(tmp_path):
    (tmp_path / "own").mkdir()
    text = "\n".join(words(number) for number in range(1, 3001))
    assert len(text) > 1_600_000
    (tmp_path / "own/long.txt").write_text(text)
    config = CorpusConfig(sources=(f"text:{tmp_path}/own",), vocab_size=300)
    (parts,), _ = cut_into_slices(config, 1)
    table = read_slice(config, parts, tmp_path / "texts", lambda step: None)
    assert table.columns["num_bytes"].sum() == len(text)
    assert table.facts.bytes_over == {}


def test_long_documents_are_cut_into_several_of_one_group(tmp_path):
    rows = [{"text": words(i, count=900), "domain": f"document_{i}"} for i in range(1, 41)]
    config = from_lines(tmp_path, rows, max_document_bytes=1000, held_fraction=0.3)
    corpus = prepare(config, tmp_path / "corpus")
    assert corpus.num_documents > 100
    for domain in range(40):  # each document has a domain of its own here, so it can be told
        splits = set(corpus.splits[corpus.domains == domain].tolist())
        assert len(splits - {SPLITS.index("short")}) == 1


# --- the same bytes ---------------------------------------------------------------------------


def test_two_processes_give_the_bytes_of_one_and_leave_a_sigterm_of_a_service_to_the_parent(
    tmp_path, undisturbed, monkeypatch
):
    """A process that it meets while it starts is replaced; later it is ignored."""
    started, start = [], subprocess.Popen

    def start_and_tell_the_first(*words, **options):
        started.append(start(*words, **options))
        if len(started) == 1:
            started[0].terminate()
        return started[-1]

    def tell_all(step):
        if step.stage == "tokens":
            for process in started:
                process.terminate()

    monkeypatch.setattr(encode, "JOBS_AHEAD", 1)
    monkeypatch.setattr(encode.subprocess, "Popen", start_and_tell_the_first)
    corpus = prepare(dataclasses.replace(TOY, processes=2), tmp_path / "two", tell_all)
    assert corpus.manifest == undisturbed.manifest
    assert len(started) in (3, 4)  # the second may still be starting when all are told
    assert [process.returncode for process in started[:1]] == [-signal.SIGTERM]
    assert started[-1].returncode == 0


class Interrupted(BaseException):
    """Stands for Ctrl-C: not an Exception, so nothing may swallow it."""


def test_a_preparation_interrupted_anywhere_resumes_to_the_same_bytes(tmp_path, undisturbed):
    events: list[object] = []
    prepare(TOY, tmp_path / "counted", events.append)
    folder = tmp_path / "interrupted"
    for last in range(0, len(events), 3):
        left = iter(range(last + 1))

        def stop_after_some(event, left=left):
            if next(left, None) is None:
                raise Interrupted

        try:
            prepare(TOY, folder, stop_after_some)
        except Interrupted:
            assert not (folder / "manifest.json").exists()
    assert prepare(TOY, folder).manifest == undisturbed.manifest
    assert sorted(file.name for file in folder.iterdir()) == sorted(
        file.name for file in undisturbed.folder.iterdir()
    )


KILLED = """
import os, signal, sys
from dipaco.data import corpus_writing, encode, prepare
from dipaco.data.config import CorpusConfig
encode.CHUNK_BYTES, encode.CHUNKS_SAVED_AT_ONCE = 10_000, 2
corpus_writing.FILE_BYTES = 12_000
config = CorpusConfig(sources=("toy:?documents=80",), vocab_size=300, processes=2)
def kill(step):
    if step.stage == "tokens" and step.done > 30_000:
        os.kill(os.getpid(), signal.SIGKILL)
prepare.prepare(config, sys.argv[1], kill)
"""


def test_a_preparation_killed_with_two_processes_resumes_to_the_same_bytes(tmp_path, undisturbed):
    folder = tmp_path / "killed"
    home = os.path.dirname(os.path.dirname(os.path.dirname(encode.__file__)))
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(folder)],
        env=os.environ | {"PYTHONPATH": home},
        timeout=60,
    )
    assert killed.returncode == -signal.SIGKILL
    steps: list[PrepareProgress] = []
    assert prepare(TOY, folder, steps.append).manifest == undisturbed.manifest
    assert steps[0].stage == "tokens", "the text is not read again"
    assert steps[0].done > 20_000, "nor is all of it encoded again"


def test_staged_text_of_other_settings_is_not_used(tmp_path, undisturbed):
    folder = tmp_path / "folder"

    def stop_late(event):
        if event.stage == "tokens" and event.done > 30_000:
            raise Interrupted

    other = dataclasses.replace(TOY, vocab_size=290)
    for config in (TOY, other, TOY):
        with pytest.raises(Interrupted):
            prepare(config, folder, stop_late)
    corpus = prepare(TOY, folder)
    assert corpus.manifest == undisturbed.manifest
    corpus.check_tokens()


@pytest.mark.parametrize("changes", [{}, {"length": 64, "processes": 2, "slices": 3}])
def test_a_finished_corpus_is_opened_as_it_is_for_other_rows_slices_and_processes_too(
    undisturbed, changes
):
    def nothing_is_done(step):
        raise AssertionError(step)

    config = dataclasses.replace(TOY, **changes)
    assert prepare(config, undisturbed.folder, nothing_is_done).digest == undisturbed.digest


# --- what goes wrong --------------------------------------------------------------------------


def test_other_settings_are_refused_by_name(undisturbed):
    with pytest.raises(CorpusOfOtherSettings, match=r"`model\.vocab_size` was 300 and is 400"):
        prepare(dataclasses.replace(TOY, vocab_size=400), undisturbed.folder)


def test_a_folder_without_a_corpus_says_so(tmp_path):
    with pytest.raises(CorpusMissing, match="no finished corpus"):
        Corpus.open(tmp_path)


def test_a_truncated_or_missing_token_file_is_seen_when_the_corpus_is_opened(undisturbed):
    first, second, *_ = (undisturbed.folder / file.name for file in undisturbed.manifest.files)
    second.write_bytes(second.read_bytes()[:-100])
    with pytest.raises(CorpusDamaged, match=r"tokens_00001.* should have .* Delete the folder"):
        Corpus.open(undisturbed.folder)
    first.unlink()
    with pytest.raises(CorpusDamaged, match=r"tokens_00000.* missing"):
        Corpus.open(undisturbed.folder)


def test_a_flipped_bit_anywhere_in_a_token_file_gives_no_other_token(undisturbed):
    file = undisturbed.folder / undisturbed.manifest.files[0].name
    content, documents = file.read_bytes(), range(undisturbed.manifest.files[0].documents)
    whole, seen = undisturbed.tokens(documents), 0
    filled = np.flatnonzero(np.frombuffer(content, np.uint8))  # The file is filled up with zeros.
    for place in filled[:: len(filled) // 40].tolist():
        flipped = bytearray(content)
        flipped[place] ^= 1 << place % 8
        file.write_bytes(flipped)
        corpus = Corpus.open(undisturbed.folder)
        corpus.tokens([79])  # in another file
        try:
            assert all(map(np.array_equal, corpus.tokens(documents), whole))
        except CorpusDamaged:
            seen += 1
    assert seen > 35


def test_a_token_file_of_which_nothing_was_written_is_seen_when_it_is_first_read(undisturbed):
    file = undisturbed.folder / undisturbed.manifest.files[0].name
    file.write_bytes(bytes(file.stat().st_size))
    with pytest.raises(CorpusDamaged, match="tokens_00000"):
        Corpus.open(undisturbed.folder).tokens([0])


def test_reading_some_documents_digests_no_file_of_tokens(undisturbed, monkeypatch):
    corpus = Corpus.open(undisturbed.folder)
    monkeypatch.setattr("dipaco.data.corpus.file_digest", None)  # All of a terabyte would be read.
    assert len(corpus.tokens(range(80))) == 80


@pytest.mark.parametrize("name", ["lengths.npy", "splits.npy", "tokenizer.json", "manifest.json"])
def test_a_flipped_byte_anywhere_else_is_seen_at_once(undisturbed, name):
    content = bytearray((undisturbed.folder / name).read_bytes())
    content[-2] ^= 1
    (undisturbed.folder / name).write_bytes(content)
    with pytest.raises(CorpusDamaged, match=name):
        Corpus.open(undisturbed.folder)


def test_no_text_is_an_empty_corpus(tmp_path):
    (tmp_path / "a.txt").write_text(" \n\n")
    with pytest.raises(EmptyCorpus, match=r"a\.txt"):
        prepare(dataclasses.replace(TOY, sources=(f"text:{tmp_path}/a.txt",)), tmp_path / "corpus")


@pytest.mark.parametrize("held_fraction", [1e-9, 0.45])  # one file is in one split
def test_one_file_cannot_be_split_by_file_and_the_error_says_what_to_do(tmp_path, held_fraction):
    lines = "\n".join(words(i) for i in range(1, 200))
    (tmp_path / "a.txt").write_text(lines)
    config = dataclasses.replace(
        TOY,
        sources=(f"text:{tmp_path}/a.txt",),
        max_document_bytes=900,
        held_fraction=held_fraction,
    )
    with pytest.raises(EmptySplit, match=r"in 1 groups .*a\.txt\?group=piece`"):
        prepare(config, tmp_path / "corpus")
    config = dataclasses.replace(
        config, sources=(f"{config.sources[0]}?group=piece",), held_fraction=0.1
    )
    assert prepare(config, tmp_path / "corpus").num_documents > 50


def test_who_has_split_by_piece_is_not_told_to(tmp_path):
    (tmp_path / "a.txt").write_text(words(1) + "\n" + words(2))
    config = dataclasses.replace(
        TOY,
        sources=(f"text:{tmp_path}/a.txt?group=piece",),
        held_fraction=1e-9,  # wherever the test's folder lies, both pieces are in `train`
        router_fraction=1e-9,
    )
    with pytest.raises(EmptySplit, match=r"About 0\.0 groups .*lower `data.max_document") as error:
        prepare(config, tmp_path / "corpus")
    assert "group=piece" not in str(error.value)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_file_that_cannot_grow_is_a_sentence_and_nothing_is_lost(
    tmp_path, undisturbed, processes
):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def no_more_room(step):
        if step.stage == "tokens":
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))

    config = dataclasses.replace(TOY, processes=processes)
    try:
        with pytest.raises(NotWritable, match="tokens"):
            prepare(config, tmp_path / "corpus", no_more_room)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert prepare(config, tmp_path / "corpus").manifest == undisturbed.manifest


# --- the tokenizer ----------------------------------------------------------------------------


def test_any_text_is_decoded_exactly(tmp_path):
    tokenizer = train_tokenizer(["some text to learn from"] * 9, 280, tmp_path / "tokenizer.json")
    for text in ("never seen: ĀבΩ漢😀\t\n  x", "what <|endoftext|> means"):
        (tokens,) = tokenizer.encode([text])
        assert tokenizer.decode(tokens) == text
        assert (tokens > 0).all()  # text that spells the end of a text is text


def test_half_of_a_character_is_a_sentence(tmp_path):
    tokenizer = train_tokenizer(["some text to learn from"] * 9, 280, tmp_path / "tokenizer.json")
    with pytest.raises(HalfCharacter, match=r"half of a character, '\\ud800', after 'one '"):
        tokenizer.encode(["whole", "one \ud800 two"])
    with pytest.raises(HalfCharacter, match=r"'\\ud800', at its start"):
        tokenizer.encode(["\ud800"])


def test_a_given_tokenizer_is_used_as_it_is(tmp_path, undisturbed):
    given = dataclasses.replace(TOY, tokenizer=str(undisturbed.tokenizer_file))
    corpus = prepare(given, tmp_path / "corpus")
    assert corpus.tokenizer().digest() == undisturbed.tokenizer().digest()


def test_a_tokenizer_without_its_token_for_other_text_is_a_sentence(tmp_path, undisturbed):
    content = json.loads(undisturbed.tokenizer_file.read_text())
    content["model"] = {"type": "WordLevel", "vocab": {"hello": 1}, "unk_token": "[?]"}
    (tmp_path / "a.json").write_text(json.dumps(content))
    with pytest.raises(BadTokenizer, match=r"a\.json cannot be used: WordLevel.*whole vocabulary"):
        load_tokenizer(tmp_path / "a.json").encode(["other"])
    content["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    (tmp_path / "a.json").write_text(json.dumps(content))
    with pytest.raises(BadTokenizer, match=r"a\.json cannot be used: .*precompiled_charsmap"):
        load_tokenizer(tmp_path / "a.json")


def test_a_tokenizer_that_drops_merges_by_chance_drops_none_here(tmp_path, undisturbed):
    """Every machine and every try has to get the same tokens."""
    content = json.loads(undisturbed.tokenizer_file.read_text())
    content["model"]["dropout"] = 0.9
    (tmp_path / "a.json").write_text(json.dumps(content))
    texts = ["the same text " * 9]
    for _ in range(3):
        (found,), (expected,) = (
            each.encode(texts)
            for each in (load_tokenizer(tmp_path / "a.json"), undisturbed.tokenizer())
        )
        np.testing.assert_array_equal(found, expected)


@pytest.fixture
def spells_half(tmp_path):
    """A tokenizer of whole words that knows half of those of the toy corpus."""
    import tokenizers

    from dipaco.data.toy import toy_documents

    words = sorted({word for each in toy_documents(documents=80) for word in each.text.split()})
    known = {"<|endoftext|>": 0, "[?]": 1}
    known |= {word: number for number, word in enumerate(words[::2], start=2)}
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel(known, unk_token="[?]"))
    library.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    library.add_special_tokens(["<|endoftext|>"])
    library.save(str(tmp_path / "words.json"))
    return tmp_path / "words.json"


def test_how_much_of_the_text_a_given_tokenizer_cannot_spell_is_said(
    tmp_path, spells_half, monkeypatch
):
    monkeypatch.setattr(corpus_writing, "FILE_BYTES", 2000)
    config = dataclasses.replace(TOY, tokenizer=str(spells_half), vocab_size=2000)
    corpus = prepare(config, tmp_path / "whole")
    tokens = np.concatenate(corpus.tokens(range(corpus.num_documents)))
    unknown = int((tokens == 1).sum())
    assert 0.2 < unknown / len(tokens) < 0.8
    assert corpus.manifest.notes == (
        f"Of {len(tokens):,} tokens, {unknown:,} ({unknown / len(tokens):.1%}) are `[?]`: the "
        "given tokenizer cannot spell that text.",
    )

    def stop_in_the_second_file(step):
        if step.stage == "corpus" and (tmp_path / "halves" / "tokens_00001.arrayrecord").exists():
            raise Interrupted

    with pytest.raises(Interrupted):
        prepare(config, tmp_path / "halves", stop_in_the_second_file)
    assert prepare(config, tmp_path / "halves").manifest == corpus.manifest


def test_a_vocabulary_of_which_little_is_used_is_said(tmp_path, undisturbed, monkeypatch):
    monkeypatch.setattr(corpus_writing, "FILE_BYTES", 2000)
    config = dataclasses.replace(TOY, vocab_size=4000)
    corpus = prepare(config, tmp_path / "corpus")
    used = len(np.unique(np.concatenate(corpus.tokens(range(corpus.num_documents)))))
    assert len(corpus.manifest.files) > 1
    assert used < 2000
    note = corpus.manifest.notes[-1]
    assert note.startswith(f"Of the model's 4,000 ids, {used:,} ({used / 4000:.1%}) occur")
    assert not any("ids" in each for each in undisturbed.manifest.notes)


def test_documents_of_which_a_given_tokenizer_leaves_nothing_are_counted_in_a_note(tmp_path):
    """Without a token for unknown text it drops what it cannot spell."""
    import tokenizers

    known = {"<|endoftext|>": 0} | {letter: 1 + n for n, letter in enumerate("abcdefghij")}
    library = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=known, merges=[]))
    library.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    library.add_special_tokens(["<|endoftext|>"])
    library.save(str(tmp_path / "letters.json"))
    spelt = [
        {"text": " ".join(f"{number * n * n % 997:03d}" for n in range(60)).translate(DIGITS)}
        for number in range(1, 121)
    ]
    rows = [*spelt, *({"text": "Ж" * (1 + number)} for number in range(30))]
    config = from_lines(tmp_path, rows, tokenizer=str(tmp_path / "letters.json"))
    corpus = prepare(config, tmp_path / "corpus")
    assert (corpus.lengths == 0).sum() == 30
    assert (
        "Of 150 documents, 30 (20.0%) have no token: the given tokenizer drops their text."
    ) in corpus.manifest.notes


DIGITS = str.maketrans("0123456789", "abcdefghij")


def test_a_tokenizer_that_spells_any_text_has_no_token_for_what_it_cannot(undisturbed):
    assert undisturbed.tokenizer().unknown_id is None
    assert not any("the given tokenizer" in note for note in undisturbed.manifest.notes)


def test_an_invalid_or_too_large_tokenizer_is_refused(tmp_path, undisturbed):
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(BadTokenizer, match=r"bad\.json"):
        load_tokenizer(tmp_path / "bad.json")
    with pytest.raises(BadTokenizer, match="ids go up to 299, and the model has 290 ids"):
        given_tokenizer(undisturbed.tokenizer_file, dataclasses.replace(TOY, vocab_size=290))


def test_the_pieces_of_a_text_have_its_number_unless_they_are_groups(tmp_path):
    rows = [{"text": words(number, 20 if number % 2 else 300)} for number in range(1, 81)]
    config = from_lines(tmp_path, rows, max_document_bytes=512)
    whole = prepare(config, tmp_path / "whole")
    assert whole.texts.tolist() == (np.cumsum(whole.edges.begins_N) - 1).tolist()
    assert whole.texts[-1] == 79
    assert np.bincount(whole.texts).max() > 4
    named = tuple(f"{source}?group=piece" for source in config.sources)
    pieces = prepare(dataclasses.replace(config, sources=named), tmp_path / "pieces")
    of_train = np.isin(pieces.texts, pieces.texts[pieces.documents("train")])
    others = np.concatenate([pieces.documents(split) for split in ("tune", "test", "router")])
    assert len(others) > 10
    assert not of_train[others].any(), "a group is in one split"
    assert (np.diff(pieces.texts) >= 0).all()
