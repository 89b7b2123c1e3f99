"""A corpus that is read and tokenised in many slices is the one of a single slice, bit for bit."""

import contextlib
import dataclasses
import gzip
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dipaco.data import merging
from dipaco.data.config import CorpusConfig, DataConfig
from dipaco.data.corpus import Corpus
from dipaco.data.encode import TextPlaces, tokenise_slice
from dipaco.data.errors import BadRecord, NoGoodRow
from dipaco.data.prepare import prepare
from dipaco.data.reading import PrepareProgress, read_slice
from dipaco.data.slices import cut_into_slices
from dipaco.data.tokenizer import train_tokenizer

WORDS = Path(random.__file__).read_text().split()
SETTINGS = {
    "vocab_size": 300,
    "processes": 1,
    "prefix_tokens": 4,
    "held_fraction": 0.2,
    "router_fraction": 0.2,
    "max_document_bytes": 700,
}


def write_sources(folder: Path) -> tuple[str, ...]:
    """Files of every kind; texts that come twice, in one file and in several; long texts, blank
    ones, and an empty file.
    """
    dice = random.Random(0)

    def text(words: int) -> str:
        start = dice.randrange(len(WORDS) - words)
        return " ".join(WORDS[start : start + words])

    twice = [text(30) for _ in range(8)]
    for kind in ("notes/a", "notes/b", "lines", "tables"):
        (folder / kind).mkdir(parents=True)
    for number in range(12):
        paragraphs = [text(dice.randrange(5, 60)) for _ in range(dice.randrange(1, 9))]
        content = "\n\n".join([*paragraphs, dice.choice(twice)])
        (folder / "notes" / "ab"[number % 2] / f"{number:02d}.txt").write_text(content)
    (folder / "notes/a/empty.txt").write_text("")
    (folder / "notes/b/copy.txt").write_text((folder / "notes/a/00.txt").read_text())
    for name in ("one.jsonl", "two.jsonl.gz"):
        with (gzip.open if name.endswith("gz") else open)(folder / "lines" / name, "wt") as stream:
            for number in range(90):
                words = dice.choice([twice[number % 8], text(dice.randrange(3, 200)), " "])
                domain = dice.choice(["a", "law", "songs"])
                stream.write(
                    json.dumps({"text": words, "domain": domain}) + "\n" * (number % 3 > 0)
                )
                stream.write("\n" * (number % 3 == 0))
    tables = []
    with contextlib.suppress(ImportError):  # pyarrow, of the extra `train`
        from pyarrow import parquet, table

        for number in range(3):
            rows = {"text": [text(20) for _ in range(9)] + twice, "domain": ["law"] * 17}
            parquet.write_table(table(rows), folder / f"tables/{number}.parquet")
        tables = [f"parquet:{folder}/tables?domain=domain"]
    return (
        f"jsonl:{folder}/lines",
        "toy:?documents=40&words=30",
        f"text:{folder}/notes/**/*.txt",
        *tables,
        f"text:{folder}/notes/a?group=piece&domain=law",
    )


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> tuple[str, ...]:
    return write_sources(tmp_path_factory.mktemp("sources"))


@pytest.fixture(scope="module")
def small_files() -> Iterator[None]:
    """So that there are many chunks, and files of tokens."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dipaco.data.encode.CHUNK_BYTES", 5000)
        patch.setattr("dipaco.data.corpus_writing.FILE_BYTES", 4000)
        yield


@pytest.fixture(scope="module", params=[None, 4000, 2500], ids="bound {}".format)
def whole(request, sources, tmp_path_factory, small_files) -> tuple[CorpusConfig, Corpus]:
    config = CorpusConfig(sources=sources, max_bytes_per_domain=request.param, **SETTINGS)
    return config, prepare(config, tmp_path_factory.mktemp("whole") / "corpus")


@pytest.mark.parametrize("count", [3, 40])
def test_many_slices_of_real_text_make_the_corpus_of_one(whole, tmp_path, count):
    config, corpus = whole
    assert len(corpus.manifest.files) > 2
    assert corpus.manifest.duplicates > 4
    sliced = dataclasses.replace(config, slices=count)
    assert prepare(sliced, tmp_path).manifest == corpus.manifest


def test_slices_share_the_bytes_out_and_cut_json_lines_between_lines(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps({"text": f"{n:04d}" * 20}) + "\n" for n in range(100)))
    slices, listing = cut_into_slices(DataConfig(sources=(f"jsonl:{file}",)), 3)
    assert (listing.files, listing.num_bytes) == (1, file.stat().st_size)
    sizes = [part.stop or listing.num_bytes for (source,) in slices for part in source.files]
    assert np.allclose(np.diff([0, *sizes]), listing.num_bytes / 3, atol=1)


def test_an_error_in_a_slice_names_the_line_of_the_file(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "fine"}\n' * 90 + "{broken\n")
    config = CorpusConfig(sources=(f"jsonl:{file}",), vocab_size=300)
    slices, _ = cut_into_slices(config, 2)
    with pytest.raises(BadRecord, match=r"line 91: not JSON"):
        read_slice(config, slices[1], tmp_path / "texts", lambda _: None)


@pytest.mark.parametrize("count", [1, 3])
def test_bad_rows_of_all_slices_are_counted_together(tmp_path, count):
    file = tmp_path / "a.jsonl"
    rows = [json.dumps({"text": f"{n:04d} and some words more " * 9}) for n in range(100)]
    url = f"jsonl:{file}"
    config = CorpusConfig(
        sources=(url,), vocab_size=300, bad_rows="skip", slices=count, held_fraction=0.2
    )
    file.write_text("\n".join([*rows[:50], "{broken", *rows[50:], "broken, too"]))
    (note,) = prepare(config, tmp_path / "corpus").manifest.notes
    assert note.startswith(
        f"Left out, since they cannot be read: 2 of 102 rows of `{url}`. The "
        f"first: {file}, line 51: not JSON (Expecting"
    )
    file.write_text("{broken\n" * 100)
    with pytest.raises(NoGoodRow, match=f"None of the 100 rows of `{url}` can be read"):
        prepare(config, tmp_path / "none")


def test_names_that_would_steer_a_terminal_are_written_out(tmp_path):
    kept = ["x|y", "\u0645\u06cc\u200c\u062e", "家\u3000b", "👩\u200d💻"]
    names = ["a\nb", "\x1b[2Jc", "a\u202eb", *kept, "\x9b"]
    shown = [r"a\nb", r"\x1b[2Jc", r"a\u202eb", *kept, r"\x9b"]
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps({"text": n, "domain": n}) + "\n" for n in names))
    latin = Path(os.fsdecode(os.fsencode(tmp_path) + b"/text/caf\xe9"))
    latin.mkdir(parents=True)
    (latin / "a.txt").write_text("some text")
    (latin / "b.txt").write_bytes(b"")
    (latin / "c.txt").write_bytes(b"\xff")
    sources = (f"jsonl:{file}", f"text:{tmp_path}/text")
    config = DataConfig(sources=sources, bad_rows="skip")
    slices, _ = cut_into_slices(config, 1)
    facts = read_slice(config, slices[0], tmp_path / "texts", lambda _: None).facts
    assert facts.domain_names == [*shown, r"caf\udce9"]
    assert [note[-18:] for note in facts.notes] == [r"/caf\udce9/b.txt`."]
    first = facts.bad_rows[sources[1]].first
    assert first.endswith(r"caf\udce9/c.txt, byte 0: 0xff (invalid start byte)")


def test_a_long_or_a_blank_name_of_a_domain_is_one_that_can_be_shown(tmp_path):
    long = ["x" * 300, "x" * 300 + "y", "\x1b" * 64, "z" * 64]
    file = tmp_path / "a.jsonl"
    names = [*long, " ", "\u3000", "\u200c"]
    file.write_text("".join(json.dumps({"text": f"x {n}", "domain": n}) + "\n" for n in names))
    (tmp_path / " ").mkdir()
    (tmp_path / " " / "a.txt").write_text("some text")
    config = DataConfig(sources=(f"jsonl:{file}", f"text:{tmp_path}/ "))
    slices, _ = cut_into_slices(config, 1)
    facts = read_slice(config, slices[0], tmp_path / "texts", lambda _: None).facts
    assert facts.domain_names[3:] == ["z" * 64, "a", "(blank)"]
    assert [(len(name), name[:54]) for name in facts.domain_names[:3]] == [
        (64, "x" * 54),
        (64, "x" * 54),
        (64, (r"\x1b" * 14)[:54]),
    ]


def test_the_smallest_of_too_many_domains_are_one_with_a_sentence(tmp_path, monkeypatch):
    """A column `domain` is read unasked, and may tell as many names as it has rows."""
    monkeypatch.setattr(merging, "MOST_DOMAINS", 4)
    file = tmp_path / "a.jsonl"
    names = [0, *range(20), 7, 7, 19]
    rows = [{"text": f"{at} " + "word " * 40, "domain": name} for at, name in enumerate(names)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = CorpusConfig(
        sources=(f"jsonl:{file}",), vocab_size=300, held_fraction=0.1, router_fraction=0.1
    )
    found = [
        prepare(dataclasses.replace(config, slices=slices), tmp_path / str(slices))
        for slices in (1, 5)
    ]
    assert found[0].digest == found[1].digest
    domains = {domain.name: domain.documents for domain in found[0].manifest.domains}
    assert domains == {"0": 2, "7": 3, "19": 2, "(others)": 17}
    assert any("has 20 domains" in note for note in found[0].manifest.notes)


def test_more_domains_than_two_bytes_count_are_read(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text("".join(f'{{"text": "x{n % 99}", "domain": {n}}}\n' for n in range(70_000)))
    config = CorpusConfig(sources=(f"jsonl:{file}",), vocab_size=300)
    slices, _ = cut_into_slices(config, 1)
    documents = merging.merge(
        config, [read_slice(config, slices[0], tmp_path / "t", lambda _: None)]
    )
    assert len(documents.facts.domain_names) == 1 << 16
    assert documents.domains.dtype == np.uint16
    assert (documents.domains[:100] == np.arange(100)).all()
    assert (documents.domains[-9:] == (1 << 16) - 1).all()


def test_the_listing_says_whether_two_machines_see_the_same_files(tmp_path):
    config = DataConfig(sources=(f"text:{tmp_path}/*.txt",))
    (tmp_path / "a.txt").write_text("some text")
    before = cut_into_slices(config, 2)[1]
    assert cut_into_slices(config, 4)[1] == before
    (tmp_path / "a.txt").write_text("some other text")
    assert cut_into_slices(config, 2)[1].digest != before.digest


def test_bytes_of_a_slice_are_counted_also_where_letters_take_several(tmp_path, small_files):
    text, steps = "Füße über Flüsse " * 50, list[PrepareProgress]()
    size = len(text.encode())
    (tmp_path / "texts").write_text(text * 20)
    texts = TextPlaces(np.arange(20) * size, np.full(20, size))
    tokenizer = train_tokenizer([text], 300, tmp_path / "tokenizer.json")
    config = CorpusConfig(sources=("toy:",), **SETTINGS)
    folder = tmp_path / "made"
    tokenise_slice(config, tmp_path / "texts", texts, tokenizer, folder, steps.append)
    assert len(steps) > 1
    assert steps[-1].done == steps[-1].total == 20 * size
