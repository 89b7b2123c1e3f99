"""Makes a corpus: reads, splits and tokenises the sources, once.

The bytes depend on the text and the settings, not on the run's seed, the number of processes or
interruptions. Memory holds a few chunks, and some bytes a document. The manifest is written last,
so it means "finished".
"""

import dataclasses
import json
import shutil
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from dipaco.data.config import DataConfig, corpus_settings, edge_names, num_processes
from dipaco.data.corpus import (
    ARRAYS,
    FORMAT_VERSION,
    Corpus,
    CorpusManifest,
    DomainFacts,
    read_manifest,
)
from dipaco.data.edge_tokens import EdgeTokens, edge_tokens
from dipaco.data.encode import encode_chunks
from dipaco.data.errors import CorpusOfOtherSettings, EmptySplit
from dipaco.data.left_out import advice_for_empty_split, notes_of_left_out, notes_of_unknown
from dipaco.data.source_url import SUFFIXES, files_of, parse_url
from dipaco.data.staging import SPLITS, Staged, stage_documents, staging_name
from dipaco.data.token_files import TokenFile, TokenWriter
from dipaco.data.tokenizer import Tokenizer, load_tokenizer, train_tokenizer
from dipaco.files import digest_of, file_digest, write_whole

Documents = dict[str, int]  # split -> documents
Check = Callable[[Documents], object]

FILE_BYTES = 64 << 20  # of tokens, before compression


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareProgress:
    """Progress of a stage of `prepare`: `fetch`, `read`, `tokenizer` or `tokens`."""

    stage: str
    done: int = 0  # in `unit`
    total: int | None = None  # None = not known
    unit: str = ""  # "bytes", or empty for a message alone
    message: str = ""


def prepare(
    config: DataConfig,
    folder: Path | str,
    progress: Callable[[PrepareProgress], None] = lambda step: None,
    check: Check = lambda documents: None,
) -> Corpus:
    """Reads, splits and tokenises the sources into `folder`; resumes where it was interrupted.

    Args:
      config: what to read and how.
      folder: for this corpus alone. A finished corpus of the same settings is opened as it is.
      progress: called with the progress of each stage.
      check: called with the most documents that each split will have, once the text is read, and
        with those that it has, before the corpus is finished; may raise.

    Raises:
      CorpusOfOtherSettings: the folder holds another corpus.
      EmptyCorpus, EmptySplit: there is no text, or too little of it for a split.
      BadSource, BinaryText, BadRecord, MissingColumn, ExtraMissing, BadTokenizer.
    """
    folder = Path(folder)
    if (finished := finished_corpus(config, folder)) is not None:
        return finished
    staging = staging_folder(config, folder)
    staged = stage_documents(
        config,
        staging,
        say=lambda message: progress(PrepareProgress(stage="fetch", message=message)),
        count=lambda done: progress(PrepareProgress(stage="read", done=done, unit="bytes")),
    )
    check(count_splits(config, staged, staged.splits[staged.is_kept]))  # before hours of work
    tokenizer = tokenizer_for(config, staged, staged.sample_of_train, progress)
    edge_tokens(tokenizer, edge_names(config))  # also before hours of work
    chunks = range(staged.num_chunks)

    def encoded(start: int) -> Generator[list[np.ndarray]]:
        return encode_chunks(staged, chunks[start:], tokenizer, num_processes(config))

    return write_corpus(config, folder, staged, tokenizer, encoded, progress, check)


def finished_corpus(config: DataConfig, folder: Path) -> Corpus | None:
    """The corpus in a folder; None if it is not finished. Raises `CorpusOfOtherSettings`."""
    if not (folder / "manifest.json").exists():
        return None
    manifest, settings = read_manifest(folder), corpus_settings(config)
    if manifest.settings != settings:
        difference = _difference(manifest.settings, settings)
        raise CorpusOfOtherSettings(folder=folder, difference=difference)
    return Corpus.open(folder)


def staging_folder(config: DataConfig, folder: Path) -> Path:
    """Where a corpus is staged that is made in `folder`; it is there afterwards."""
    staging = folder / "staging" / staging_name(corpus_settings(config))
    staging.mkdir(parents=True, exist_ok=True)
    return staging


def write_corpus(
    config: DataConfig,
    folder: Path,
    staged: Staged,
    tokenizer: Tokenizer,
    encoded: Callable[[int], Generator[list[np.ndarray]]],
    progress: Callable[[PrepareProgress], None],
    check: Check = lambda documents: None,
) -> Corpus:
    """Writes what is known of all documents, and their tokens, into `folder`.

    Args:
      config, folder, progress, check: as of `prepare`.
      staged: the documents.
      tokenizer: that they were encoded with.
      encoded: from a chunk on, gives the tokens of the kept documents of each chunk.

    Raises:
      EmptySplit: of a split no document is long enough.
    """
    edges = edge_tokens(tokenizer, edge_names(config))
    written = _write_tokens(folder, staged, tokenizer, encoded, progress)
    _finish(config, folder, staged, tokenizer, edges, written, check)
    shutil.rmtree(folder / "staging", ignore_errors=True)
    return Corpus.open(folder)


def check_files(config: DataConfig) -> None:
    """Raises `BadSource` or `BadTokenizer`: files that the settings name are not here, or the
    tokenizer is none, or has no tokens for the edges of texts. Reads no text and fetches nothing.
    """
    for source in map(parse_url, config.sources):
        if source.kind in SUFFIXES:
            files_of(source)
    if config.tokenizer is not None:
        given = load_tokenizer(Path(config.tokenizer), max_vocab_size=config.vocab_size)
        edge_tokens(given, edge_names(config))


def tokenizer_for(
    config: DataConfig,
    staged: Staged,
    sample_of: Callable[[int], Iterator[str]],
    progress: Callable[[PrepareProgress], None],
) -> Tokenizer:
    """The run's tokenizer, in the folder of the staged documents; trained or copied unless there.

    Args:
      config: which one, or how large.
      staged: the documents.
      sample_of: about so many bytes of their text, to train it on.
      progress: called before it is trained.
    """
    file = staged.folder / "tokenizer.json"
    if file.exists():
        return load_tokenizer(file)
    if config.tokenizer is not None:
        given = load_tokenizer(Path(config.tokenizer), max_vocab_size=config.vocab_size)
        write_whole(file, lambda stream: stream.write(given.file.read_bytes()))
        return load_tokenizer(file)
    message = f"training a tokenizer of {config.vocab_size} tokens"
    progress(PrepareProgress(stage="tokenizer", message=message))
    sample = sample_of(config.tokenizer_sample_bytes)
    return train_tokenizer(sample, config.vocab_size, file)


class _FileRecord(msgspec.Struct):
    file: TokenFile
    lengths: list[int]
    next_chunk: int
    unknown: int = 0  # of its tokens


class _Written(NamedTuple):
    """The token files of a corpus."""

    files: list[TokenFile]
    lengths: np.ndarray  # int32 [documents]
    num_unknown: int  # tokens that stand for text that the tokenizer cannot spell


def _write_tokens(
    folder: Path,
    staged: Staged,
    tokenizer: Tokenizer,
    encoded: Callable[[int], Generator[list[np.ndarray]]],
    progress: Callable[[PrepareProgress], None],
) -> _Written:
    """Writes the token files that are missing. An interrupted file is written again whole."""
    token_type, unknown_id = tokenizer.token_type, tokenizer.unknown_id
    files: list[TokenFile] = []
    lengths: list[np.ndarray] = []
    chunk = num_unknown = 0
    while (done := staged.folder / f"file_{len(files):05d}.json").exists():
        record = msgspec.json.decode(done.read_bytes(), type=_FileRecord)
        written = folder / record.file.name
        if not written.exists() or file_digest(written) != record.file.digest:
            break  # overwritten by a preparation with other settings
        files.append(record.file)
        lengths.append(np.array(record.lengths, dtype=np.int32))
        chunk = record.next_chunk
        num_unknown += record.unknown

    total = int(staged.num_bytes[staged.is_kept].sum(dtype=np.int64))
    rest = encoded(chunk)
    try:
        while chunk < staged.num_chunks:
            writer = TokenWriter(folder / f"tokens_{len(files):05d}.arrayrecord")
            unknown = 0
            while chunk < staged.num_chunks and writer.num_bytes < FILE_BYTES:
                for tokens in next(rest):
                    writer.write(tokens.astype(token_type))
                    if unknown_id is not None:
                        unknown += int((tokens == unknown_id).sum())
                chunk += 1
                read = slice(0, staged.chunk_starts[chunk])
                bytes_done = int(staged.num_bytes[read][staged.is_kept[read]].sum(dtype=np.int64))
                progress(
                    PrepareProgress(stage="tokens", done=bytes_done, total=total, unit="bytes")
                )
            file, file_lengths = writer.close()
            record = _FileRecord(file=file, lengths=file_lengths, next_chunk=chunk, unknown=unknown)
            # The record after the file: a file without one is written again, to the same bytes.
            write_whole(
                staged.folder / f"file_{len(files):05d}.json",
                lambda stream, r=record: stream.write(msgspec.json.encode(r)),
            )
            files.append(file)
            lengths.append(np.array(file_lengths, dtype=np.int32))
            num_unknown += unknown
    finally:
        rest.close()
    return _Written(files, np.concatenate(lengths), num_unknown)


def _finish(
    config: DataConfig,
    folder: Path,
    staged: Staged,
    tokenizer: Tokenizer,
    edges: EdgeTokens,
    written: _Written,
    check: Check,
) -> None:
    files, lengths, num_unknown = written
    kept = staged.is_kept
    splits, domains, num_bytes = staged.splits[kept], staged.domains[kept], staged.num_bytes[kept]
    short = (splits != SPLITS.index("train")) & (lengths <= config.prefix_tokens)
    splits[short] = SPLITS.index("short")
    documents = count_splits(config, staged, splits)
    check(documents)
    begins, ends = staged.begins[kept], staged.ends[kept]
    arrays = dict(zip(ARRAYS, (lengths, domains, splits, begins, ends), strict=True))
    for name, values in arrays.items():
        write_whole(folder / f"{name}.npy", lambda stream, v=values: np.save(stream, v))
    write_whole(folder / "tokenizer.json", lambda stream: stream.write(tokenizer.file.read_bytes()))
    tokenizer_digest = tokenizer.digest()
    array_digests = {name: digest_of(values) for name, values in arrays.items()}
    identity = (tokenizer_digest, *(file.digest for file in files), *array_digests.values())
    manifest = CorpusManifest(
        format_version=FORMAT_VERSION,
        settings=corpus_settings(config),
        digest=digest_of(FORMAT_VERSION, *identity, *map(str, edges), *staged.domain_names),
        tokenizer_digest=tokenizer_digest,
        edge_tokens=edges,
        token_type=tokenizer.token_type,
        files=tuple(files),
        array_digests=array_digests,
        documents=documents,
        tokens=int(lengths.sum(dtype=np.int64)),
        num_bytes=int(num_bytes.sum(dtype=np.int64)),
        duplicates=int((~kept).sum()),
        short=documents["short"],
        domains=tuple(
            DomainFacts(
                name=name,
                documents=int((domains == number).sum()),
                tokens=int(lengths[domains == number].sum(dtype=np.int64)),
                num_bytes=int(num_bytes[domains == number].sum(dtype=np.int64)),
                licence=staged.licences.get(name, "not stated"),
            )
            for number, name in enumerate(staged.domain_names)
        ),
        left_out=staged.left_out,
        notes=(
            *staged.notes,
            *notes_of_left_out(config, staged, documents["short"]),
            *notes_of_unknown(tokenizer, num_unknown, lengths),
        ),
    )
    for left_over in folder.glob("tokens_*"):
        if left_over.name not in {file.name for file in files}:
            left_over.unlink()
    text = json.dumps(dataclasses.asdict(manifest), indent=1, ensure_ascii=False)
    write_whole(folder / "manifest.json", lambda stream: stream.write(text.encode()))


def count_splits(config: DataConfig, staged: Staged, splits: np.ndarray) -> Documents:
    """Documents by split. Raises `EmptySplit`; only `short` may be empty."""
    documents = {name: int((splits == code).sum()) for code, name in enumerate(SPLITS)}
    for split in ("train", "valid", "router"):
        if not documents[split]:
            raise EmptySplit(
                split=split,
                advice=advice_for_empty_split(config, split, staged.num_groups),
                prefix_tokens=config.prefix_tokens,
                documents=len(splits),
                groups=staged.num_groups,
                short=documents["short"],
            )
    return documents


def _difference(found: dict[str, Any], wanted: dict[str, Any]) -> str:
    names = [name for name in wanted if found.get(name) != wanted[name]]
    return ", ".join(f"`data.{n}` was {found.get(n)} and is {wanted[n]}" for n in names)
