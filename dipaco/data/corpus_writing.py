"""Writing a corpus: the tokens of all slices in files of about 64 MB, and facts about documents.

The bytes depend on the text and the settings. They do not depend on the run's seed, the number of
slices and processes, or interruptions. The manifest is written last, so it means "finished".
"""

import dataclasses
import itertools
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from dipaco.data.config import CorpusConfig, corpus_settings, edge_names
from dipaco.data.corpus import ARRAYS, FORMAT_VERSION, Corpus, CorpusManifest, DomainFacts
from dipaco.data.encode import SliceTokens
from dipaco.data.left_out import (
    count_splits,
    notes_of_left_out,
    notes_of_near_duplicates,
    notes_of_unknown,
    notes_of_vocabulary,
)
from dipaco.data.merging import Documents
from dipaco.data.near_duplicates import Pieces, pieces_of
from dipaco.data.reading import OnProgress, PrepareProgress
from dipaco.data.splits import SPLITS
from dipaco.data.token_files import TokenFile, TokenWriter
from dipaco.data.tokenizer import Tokenizer, edge_tokens
from dipaco.files import digest_of, file_digest, write_whole

FILE_BYTES = 64 << 20  # tokens in a file, before compression


def write_corpus(
    config: CorpusConfig,
    folder: Path,
    staging: Path,
    documents: Documents,
    tokenizer: Tokenizer,
    slices: Sequence[SliceTokens],
    progress: OnProgress,
    check: Callable[[dict[str, int]], object] = lambda counts: None,
) -> Corpus:
    """Writes a corpus into `folder`. Goes on where it was interrupted.

    Args:
      staging: a folder below it, for these settings alone. All of them are deleted at the end.
      check: called with the number of documents of each split, before the corpus is finished. It
        may raise.

    Raises:
      EmptySplit: no document of a split is long enough.
    """
    pieces = pieces_of(
        slices,
        tokenizer.token_type,
        documents.splits[documents.is_kept],
        config.prefix_tokens + 1,
    )
    written = _write_tokens(folder, staging, documents, tokenizer, slices, pieces, progress)
    _finish(config, folder, documents, tokenizer, pieces, written, check)
    shutil.rmtree(folder / "staging", ignore_errors=True)
    return Corpus.open(folder)


class _FileRecord(msgspec.Struct):
    file: TokenFile
    lengths: bytes  # int32
    next_chunk: int
    unknown: int  # number of tokens that stand for text that the tokenizer cannot spell
    used: bytes  # a bit for each id of the tokenizer: it occurs


class _Written(NamedTuple):
    """The token files of a corpus."""

    files: list[TokenFile]
    lengths: np.ndarray  # [pieces] int32
    num_unknown: int
    num_used: int  # ids that occur


def _write_tokens(
    folder: Path,
    staging: Path,
    documents: Documents,
    tokenizer: Tokenizer,
    slices: Sequence[SliceTokens],
    pieces: Pieces,
    progress: OnProgress,
) -> _Written:
    """Writes the token files that are missing. An interrupted file is written again whole."""
    records = _written_before(folder, staging)
    kept_before = np.append(0, np.cumsum(documents.is_kept))[documents.chunk_starts]
    bytes_kept = documents.num_bytes * documents.is_kept
    bytes_before = np.append(0, np.cumsum(bytes_kept, dtype=np.int64))[documents.chunk_starts]
    num_chunks = len(documents.chunk_starts) - 1
    chunk = records[-1].next_chunk if records else 0
    pieces_before = np.searchsorted(pieces.documents, kept_before)
    rest = itertools.islice(_tokens_of(slices, tokenizer, pieces), pieces_before[chunk], None)
    while chunk < num_chunks:
        writer = TokenWriter(folder / f"tokens_{len(records):05d}.arrayrecord")
        unknown, is_used_V = 0, np.zeros(tokenizer.vocab_size, dtype=bool)
        while chunk < num_chunks and writer.num_bytes < FILE_BYTES:
            for tokens in itertools.islice(rest, pieces_before[chunk + 1] - pieces_before[chunk]):
                writer.write(tokens)
                is_used_V[tokens] = True
                if tokenizer.unknown_id is not None:
                    unknown += int((tokens == tokenizer.unknown_id).sum())
            chunk += 1
            done, total = int(bytes_before[chunk]), int(bytes_before[-1])
            progress(PrepareProgress(stage="corpus", done=done, total=total, unit="bytes"))
        file, lengths = writer.close()
        record = _FileRecord(
            file=file,
            lengths=np.array(lengths, np.int32).tobytes(),
            next_chunk=chunk,
            unknown=unknown,
            used=np.packbits(is_used_V).tobytes(),
        )
        # The record after the file: a file without one is written again, to the same bytes.
        write_whole(
            staging / f"file_{len(records):05d}.json",
            lambda stream, r=record: stream.write(msgspec.json.encode(r)),
        )
        records.append(record)
    used = [np.frombuffer(record.used, np.uint8) for record in records]
    return _Written(
        [record.file for record in records],
        np.concatenate([np.frombuffer(record.lengths, np.int32) for record in records]),
        sum(record.unknown for record in records),
        int(np.unpackbits(np.bitwise_or.reduce(used)).sum()),
    )


def _written_before(folder: Path, staging: Path) -> list[_FileRecord]:
    """Token files that an interrupted call has written."""
    records: list[_FileRecord] = []
    while (done := staging / f"file_{len(records):05d}.json").exists():
        record = msgspec.json.decode(done.read_bytes(), type=_FileRecord)
        file = folder / record.file.name
        if not file.exists() or file_digest(file) != record.file.digest:
            break  # overwritten by a preparation with other settings
        records.append(record)
    return records


def _tokens_of(
    slices: Sequence[SliceTokens], tokenizer: Tokenizer, pieces: Pieces
) -> Iterator[np.ndarray]:
    """The tokens of each piece of the documents of all slices."""
    ranges = zip(*pieces[:3], strict=True)
    piece = next(ranges, None)
    number = 0
    for lengths, file in slices:
        if not lengths.any():
            tokens = np.zeros(0, tokenizer.token_type)  # an empty file cannot be mapped
        else:
            tokens = np.memmap(file, tokenizer.token_type, mode="r")
        start = 0
        for length in lengths.tolist():
            while piece is not None and piece[0] == number:
                yield tokens[start + piece[1] : start + piece[2]]
                piece = next(ranges, None)
            start += length
            number += 1


def _finish(
    config: CorpusConfig,
    folder: Path,
    read: Documents,
    tokenizer: Tokenizer,
    pieces: Pieces,
    written: _Written,
    check: Callable[[dict[str, int]], object],
) -> None:
    files, lengths, num_unknown, num_used = written
    facts, of = read.facts, np.flatnonzero(read.is_kept)[pieces.documents]
    splits, domains = read.splits[of], read.domains[of]
    is_whole = pieces.stops - pieces.starts == pieces.lengths
    begins = read.begins[of] & (pieces.starts == 0)
    ends = read.ends[of] & (pieces.stops == pieces.lengths)
    share = np.where(is_whole, 1, lengths / np.maximum(pieces.lengths, 1))  # of a document's bytes
    num_bytes = np.rint(read.num_bytes[of] * share).astype(np.int64)
    short = (splits != SPLITS.index("train")) & (lengths <= config.prefix_tokens)
    splits[short] = SPLITS.index("short")
    counts = count_splits(config, read, splits)
    check(counts)
    documents_D, tokens_D, bytes_D = (
        np.bincount(domains, values, minlength=len(facts.domain_names)).astype(np.int64).tolist()
        for values in (None, lengths, num_bytes)
    )
    values_of = (lengths, domains, splits, begins, ends)
    arrays = dict(zip(ARRAYS, values_of, strict=True))
    for name, values in arrays.items():
        write_whole(folder / f"{name}.npy", lambda stream, v=values: np.save(stream, v))
    write_whole(folder / "tokenizer.json", lambda stream: stream.write(tokenizer.file.read_bytes()))
    tokenizer_digest, edges = tokenizer.digest(), edge_tokens(tokenizer, edge_names(config))
    array_digests = {name: digest_of(values) for name, values in arrays.items()}
    identity = (tokenizer_digest, *(file.digest for file in files), *array_digests.values())
    manifest = CorpusManifest(
        format_version=FORMAT_VERSION,
        settings=corpus_settings(config),
        digest=digest_of(FORMAT_VERSION, *identity, *map(str, edges), *facts.domain_names),
        tokenizer_digest=tokenizer_digest,
        edge_tokens=edges,
        token_type=tokenizer.token_type,
        files=tuple(files),
        array_digests=array_digests,
        documents=counts,
        tokens=int(lengths.sum(dtype=np.int64)),
        num_bytes=int(num_bytes.sum(dtype=np.int64)),
        duplicates=int((~read.is_kept).sum()),
        near_duplicates=pieces.tokens_left_out,
        short=counts["short"],
        domains=tuple(
            DomainFacts(
                name=name,
                documents=documents,
                tokens=tokens,
                num_bytes=num_bytes_of,
                licence=facts.licences.get(name, "not stated"),
            )
            for name, documents, tokens, num_bytes_of in zip(
                facts.domain_names, documents_D, tokens_D, bytes_D, strict=True
            )
        ),
        left_out=facts.left_out,
        notes=(
            *facts.notes,
            *notes_of_left_out(config, read, counts["short"]),
            *notes_of_near_duplicates(pieces),
            *notes_of_unknown(tokenizer, num_unknown, lengths),
            *notes_of_vocabulary(config, num_used),
        ),
    )
    for left_over in folder.glob("tokens_*"):
        if left_over.name not in {file.name for file in files}:
            left_over.unlink()
    text = json.dumps(dataclasses.asdict(manifest), indent=1, ensure_ascii=False)
    write_whole(folder / "manifest.json", lambda stream: stream.write(text.encode()))
