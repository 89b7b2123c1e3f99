"""Near duplicates: what a held document has too is cut out of training documents."""

import json
import random

import numpy as np
import pytest

from dipaco.data import encode, near_duplicates
from dipaco.data.config import CorpusConfig
from dipaco.data.near_duplicates import SPAN
from dipaco.data.prepare import prepare

FRACTIONS = {"held_fraction": 0.15, "router_fraction": 0.1}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(encode, "CHUNK_BYTES", 3000)
    monkeypatch.setattr(near_duplicates, "CHUNK_TOKENS", 1000)


def drawn_words(seed, count):
    dice = random.Random(seed)
    return ["".join(dice.choices("abcdefghijklmnopqrstuvwxyz", k=6)) for _ in range(count)]


def prepared(tmp_path, name, texts, **settings):
    file = tmp_path / "rows.jsonl"
    file.write_text(
        "".join(
            json.dumps({"text": text, "group": number}) + "\n" for number, text in enumerate(texts)
        )
    )
    config = CorpusConfig(
        sources=(f"jsonl:{file}?group=group",), vocab_size=400, processes=1, **FRACTIONS | settings
    )
    return prepare(config, tmp_path / name)


def spans_of(corpus, *splits):
    documents = np.concatenate([corpus.documents(split) for split in splits])
    return {
        tokens[start : start + SPAN].tobytes()
        for tokens in corpus.tokens(documents)
        for start in range(len(tokens) - SPAN + 1)
    }


@pytest.fixture
def texts(tmp_path):
    """Eighty texts, of which each quotes the next one and the tenth after it."""
    own = [drawn_words(number, 60) for number in range(80)]
    return [
        " ".join([*words[:30], *own[(n + 1) % 80][10:22], *words[30:], *own[(n + 10) % 80][:9]])
        for n, words in enumerate(own)
    ]


def test_no_span_of_a_held_document_is_in_training_and_the_rest_stays(tmp_path, texts):
    corpus = prepared(tmp_path, "corpus", texts)
    held = spans_of(corpus, "tune", "test")
    assert len(held) > 1000
    assert not held & spans_of(corpus, "train")
    assert held & spans_of(corpus, "router"), "the router's documents train nothing and stay whole"

    manifest, pieces = corpus.manifest, corpus.documents("train")
    assert 0 < manifest.near_duplicates < 0.25 * corpus.lengths[pieces].sum()
    assert any(
        note.startswith("Left out, since documents of tune or test") for note in manifest.notes
    )
    decode = corpus.tokenizer().decode
    texts_of_pieces = [decode(tokens) for tokens in corpus.tokens(pieces)]
    assert all(any(piece in text for text in texts) for piece in texts_of_pieces)
    assert len(pieces) > len(np.unique(corpus.texts[pieces])), "some are cut in two"
    for number, piece in zip(pieces, texts_of_pieces, strict=True):
        of = next(text for text in texts if piece in text)
        assert corpus.edges.begins_N[number] == of.startswith(piece)
        assert corpus.edges.ends_N[number] == of.endswith(piece)
    # Bytes are counted by shares of tokens.
    num_bytes = sum(
        len(decode(tokens).encode()) for tokens in corpus.tokens(range(len(corpus.lengths)))
    )
    assert manifest.num_bytes == pytest.approx(num_bytes, rel=0.02)


def test_slices_and_chunks_change_nothing(tmp_path, texts, monkeypatch):
    corpus = prepared(tmp_path, "corpus", texts)
    assert prepared(tmp_path, "sliced", texts, slices=3).digest == corpus.digest
    monkeypatch.setattr(near_duplicates, "CHUNK_TOKENS", 1)
    assert prepared(tmp_path, "chunks", texts).digest == corpus.digest


def test_text_that_repeats_itself_stays_and_the_notes_say_so(tmp_path):
    log = [" ".join(["request served in", *"0123456789"]) * 20 + f" {n}" for n in range(80)]
    corpus = prepared(tmp_path, "corpus", log)
    assert corpus.num_documents == 80
    assert corpus.manifest.near_duplicates == 0
    assert any(note.endswith("this text repeats itself.") for note in corpus.manifest.notes)
