"""Shard tokens: the same tokens by the same numbers, from files of their own."""

import shutil

import numpy as np
import pytest

from dipaco.data import shard_tokens
from dipaco.data.config import CorpusConfig
from dipaco.data.corpus import Corpus
from dipaco.data.prepare import prepare
from dipaco.data.shard_tokens import ShardTokens, shard_tokens_digest, write_shard_tokens

CONFIG = CorpusConfig(
    sources=("toy:?clusters=3&documents=90&words=20",),
    vocab_size=300,
    length=32,
    prefix_tokens=8,
    held_fraction=0.1,
    router_fraction=0.2,
    processes=1,
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return prepare(CONFIG, tmp_path_factory.mktemp("corpus"))


@pytest.mark.parametrize("file_bytes", [1, 700, 1 << 20])
@pytest.mark.parametrize("documents", [np.arange(0, 90, 3), np.array([5]), np.arange(0)])
def test_the_tokens_are_those_of_the_corpus(corpus, tmp_path, monkeypatch, documents, file_bytes):
    monkeypatch.setattr(shard_tokens, "FILE_BYTES", file_bytes)
    write_shard_tokens(corpus, documents, tmp_path / "shard")
    if file_bytes == 1:
        num_files = len(list((tmp_path / "shard").glob("*.arrayrecord")))
        assert num_files == len(documents)
    found = ShardTokens(tmp_path / "shard", documents)
    assert found.digest == corpus.digest
    shutil.rmtree(tmp_path / "shard")  # as the cache may, once they are open
    asked = np.random.default_rng(0).permutation(np.repeat(documents, 2))
    for one, other in zip(found.tokens(asked), corpus.tokens(asked), strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == np.int32


def test_the_digest_depends_on_corpus_and_documents(corpus):
    names = {
        shard_tokens_digest(digest, np.array(documents))
        for digest in (corpus.digest, "other")
        for documents in ([1, 2], [1, 3], [1, 2, 3])
    }
    assert len(names) == 6
    assert shard_tokens_digest("other", np.array([1, 2], np.int32)) == shard_tokens_digest(
        "other", np.array([1, 2])
    )


def test_a_corpus_in_a_bucket_is_fetched_file_by_file_as_it_is_read(corpus, tmp_path):
    here, asked = tmp_path / "here", []
    here.mkdir()

    def fetch(name):
        asked.append(name)
        shutil.copy(corpus.folder / name, here / name)

    there = Corpus.open(here, fetch)
    assert there.digest == corpus.digest
    assert not [name for name in asked if name.startswith("tokens")]
    numbers = np.arange(10)
    for one, other in zip(there.tokens(numbers), corpus.tokens(numbers), strict=True):
        np.testing.assert_array_equal(one, other)
    assert asked[-1] == "tokens_00000.arrayrecord"
    assert there.tokenizer().vocab_size == corpus.tokenizer().vocab_size


def test_not_all_files_of_a_corpus_are_open_at_once(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr("dipaco.data.corpus.MOST_OPEN_FILES", 2)
    monkeypatch.setattr("dipaco.data.corpus_writing.FILE_BYTES", 200)
    monkeypatch.setattr("dipaco.data.encode.CHUNK_BYTES", 1000)
    small = prepare(CONFIG, tmp_path)
    assert len(small.manifest.files) > 3
    numbers = np.random.default_rng(0).permutation(90)
    for number in numbers:
        (one,), (other,) = small.tokens([number]), corpus.tokens([number])
        np.testing.assert_array_equal(one, other)
        assert len(small._readers) <= 2
