"""Preparing text: sources -> documents -> splits -> tokens -> a corpus, in this order.

`prepare` takes the steps in one process. The tasks of a run take the same steps, slice by slice, on
any workers (`workers/tasks/prepare.py`). Memory holds a few chunks of text and some bytes for each
document. A step is done once its last file is there, so an interrupted preparation goes on.
"""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dipaco.data.config import (
    CorpusConfig,
    DataConfig,
    corpus_settings,
    edge_names,
    name_in_full,
)
from dipaco.data.corpus import Corpus, read_manifest
from dipaco.data.corpus_writing import write_corpus
from dipaco.data.encode import tokenise_slice
from dipaco.data.errors import CorpusOfOtherSettings
from dipaco.data.left_out import count_splits
from dipaco.data.merging import merge
from dipaco.data.reading import (
    OnProgress,
    PrepareProgress,
    SliceTable,
    read_slice,
    table_of_arrays,
)
from dipaco.data.slices import SourcePart, cut_into_slices
from dipaco.data.source_url import SUFFIXES, files_of, parse_url
from dipaco.data.tokenizer import (
    Tokenizer,
    edge_tokens,
    given_tokenizer,
    load_tokenizer,
    train_tokenizer,
)
from dipaco.files import write_arrays, write_whole


def prepare(
    config: CorpusConfig, folder: Path | str, progress: OnProgress = lambda step: None
) -> Corpus:
    """Reads, splits and tokenises the sources into `folder`. Goes on where it was interrupted.

    Args:
      folder: for this corpus alone. A finished corpus of the same settings is opened as it is.

    Raises:
      CorpusOfOtherSettings: the folder holds another corpus.
      EmptyCorpus, EmptySplit: there is no text, or too little of it for a split.
      BadSource, BinaryText, BadRecord, MissingColumn, ExtraMissing, BadTokenizer.
    """
    folder = Path(folder)
    if (finished := finished_corpus(config, folder)) is not None:
        return finished
    staging = staging_folder(config, folder)
    slices, _ = cut_into_slices(config, config.slices)
    names = [f"{number:05d}_of_{len(slices):05d}" for number in range(len(slices))]
    files = [staging / f"texts_{name}" for name in names]
    tables = [
        _read(config, parts, file, progress) for parts, file in zip(slices, files, strict=True)
    ]
    documents = merge(config, tables)
    count_splits(config, documents, documents.splits[documents.is_kept])  # before hours of work

    def sample(num_bytes: int) -> Iterator[str]:
        chosen = documents.in_sample(num_bytes)
        for number, file in enumerate(files):
            with file.open("rb") as stream:
                yield from documents.texts(number, chosen).read(stream)

    tokenizer = tokenizer_for(config, sample, staging / "tokenizer.json", progress)
    tokens = [
        tokenise_slice(
            config,
            file,
            documents.texts(number, documents.is_kept),
            tokenizer,
            staging / f"slice_{names[number]}",
            progress,
        )
        for number, file in enumerate(files)
    ]
    return write_corpus(config, folder, staging, documents, tokenizer, tokens, progress)


def _read(
    config: DataConfig, parts: tuple[SourcePart, ...], texts: Path, progress: OnProgress
) -> SliceTable:
    table = texts.with_suffix(".npz")
    if not table.exists():
        write_arrays(table, read_slice(config, parts, texts, progress).arrays())
    with np.load(table, allow_pickle=False) as arrays:
        return table_of_arrays(dict(arrays))


def finished_corpus(config: CorpusConfig, folder: Path) -> Corpus | None:
    """The corpus in a folder. None if it is not finished. Raises `CorpusOfOtherSettings`."""
    if not (folder / "manifest.json").exists():
        return None
    manifest, settings = read_manifest(folder), corpus_settings(config)
    if manifest.settings != settings:
        difference = _difference(manifest.settings, settings)
        raise CorpusOfOtherSettings(folder=folder, difference=difference)
    return Corpus.open(folder)


def _difference(found: dict[str, Any], wanted: dict[str, Any]) -> str:
    names = [name for name in wanted if found.get(name) != wanted[name]]
    return ", ".join(f"`{name_in_full(n)}` was {found.get(n)} and is {wanted[n]}" for n in names)


def staging_folder(config: CorpusConfig, folder: Path) -> Path:
    """A folder for intermediate files of a corpus in `folder`. It is there afterwards. Its
    name has a digest of the settings, so that nothing of other settings is used.
    """
    settings = msgspec.json.encode(corpus_settings(config), order="sorted")
    staging = folder / "staging" / hashlib.sha256(settings).hexdigest()[:16]
    staging.mkdir(parents=True, exist_ok=True)
    return staging


def tokenizer_for(
    config: CorpusConfig,
    sample_of: Callable[[int], Iterator[str]],
    file: Path,
    progress: OnProgress,
) -> Tokenizer:
    """The run's tokenizer, in `file`: trained, or copied, unless it is there.

    Args:
      sample_of: gives about so many bytes of text to train it on.

    Raises:
      BadTokenizer: it does not fit the model, or has no token for an edge of texts.
    """
    if config.tokenizer is not None and not file.exists():
        given = given_tokenizer(config.tokenizer, config)
        write_whole(file, lambda stream: stream.write(given.file.read_bytes()))
    if not file.exists():
        message = f"training a tokenizer of {config.vocab_size} tokens"
        progress(PrepareProgress(stage="tokenizer", message=message))
        train_tokenizer(sample_of(config.tokenizer_sample_bytes), config.vocab_size, file)
    tokenizer = load_tokenizer(file)
    edge_tokens(tokenizer, edge_names(config))  # before hours of work
    return tokenizer


def check_files(config: CorpusConfig) -> None:
    """Raises `BadSource` or `BadTokenizer`: files that the settings name are not here, or the
    tokenizer is none, or has no tokens for the edges of texts. Reads no text and fetches nothing.
    """
    for source in map(parse_url, config.sources):
        if source.kind in SUFFIXES:
            files_of(source)
    if config.tokenizer is not None:
        given_tokenizer(config.tokenizer, config)
