"""The corpus: the tokens of every document, once, and flat arrays about the documents.

    FOLDER/manifest.json        counts and digests, written last, so it means "finished"
    FOLDER/tokenizer.json
    FOLDER/lengths.npy domains.npy splits.npy begins.npy ends.npy
                                one entry a document, memory-mapped
    FOLDER/tokens_00000.arrayrecord ...             one record a document, about 64 MB a file

A document is known by its number, its index in these arrays. A shard is an array of numbers, so
re-routing documents moves no token, and a machine fetches only the files that it needs. Every
file's size is checked when the corpus is opened, and its records are counted when it is first read.
ArrayRecord compares each block that it reads with the block's own hash, so that the first batches
do not wait until all files that they touch are digested.
"""

import dataclasses
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, Self

import msgspec
import numpy as np

from dipaco.data.config import EdgeNames
from dipaco.data.errors import CorpusDamaged, CorpusOfOtherSettings
from dipaco.data.splits import SPLITS
from dipaco.data.token_files import TokenFile, open_reader
from dipaco.data.tokenizer import Edges, EdgeTokens, Tokenizer, edge_names_of, load_tokenizer
from dipaco.errors import CorpusMissing, one_line
from dipaco.files import digest_of, file_digest, file_limit
from dipaco.receipt import Receipt

FORMAT_VERSION = 4
MOST_OPEN_FILES = 1024  # 64 GB of tokens. A process keeps half of the files that it may open.
ARRAYS = ("lengths", "domains", "splits", "begins", "ends")
ALWAYS_READ = ("manifest.json", "tokenizer.json", *(f"{name}.npy" for name in ARRAYS))


@dataclasses.dataclass(frozen=True, kw_only=True)
class DomainFacts:
    """Counts of one domain over all splits."""

    name: str
    documents: int
    tokens: int
    num_bytes: int  # UTF-8 text
    licence: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusManifest:
    """The contents of a corpus, as in manifest.json."""

    format_version: int
    settings: dict[str, Any]
    digest: str  # identifies the corpus: its tokenizer, tokens and arrays
    tokenizer_digest: str
    edge_tokens: EdgeTokens
    token_type: str  # "uint16" or "uint32"
    files: tuple[TokenFile, ...]
    array_digests: dict[str, str]
    documents: dict[str, int]  # split -> documents
    tokens: int
    num_bytes: int
    duplicates: int  # documents dropped because an earlier one has the same text
    near_duplicates: int  # tokens of training documents that held ones have too, and are left out
    short: int  # documents of tune, test or router no longer than the routing prefix
    domains: tuple[DomainFacts, ...]
    left_out: dict[str, str]  # domain -> why it is missing
    notes: tuple[str, ...]


class TokenReader(Protocol):
    """Tokens of documents by number: a corpus, or the shard tokens of some documents."""

    @property
    def digest(self) -> str:
        """Identifies the corpus."""
        ...

    def tokens(self, document_numbers: Sequence[int] | np.ndarray) -> list[np.ndarray]:
        """Int32, one array for each, in the order asked for."""
        ...


class Corpus:
    """A prepared corpus, open for reading."""

    def __init__(
        self,
        folder: Path,
        manifest: CorpusManifest,
        arrays: dict[str, np.ndarray],
        fetch: Callable[[str], object] | None,
    ):
        self.folder = folder
        self._fetch = fetch
        self.manifest = manifest
        self.lengths = arrays["lengths"]  # [N] int32 tokens
        self.domains = arrays["domains"]  # [N] uint16, an index in `domain_names`
        self.splits = arrays["splits"]  # [N] uint8, an index in `SPLITS`
        # Bool: the document is the beginning of a text, or the end of one.
        self.edges = Edges(manifest.edge_tokens, arrays["begins"], arrays["ends"])
        self.domain_names = tuple(domain.name for domain in manifest.domains)
        self._file_starts = np.cumsum([0] + [file.documents for file in manifest.files])
        self._readers: OrderedDict[int, Any] = OrderedDict()  # the most recently used last
        self._lock = threading.Lock()

    @classmethod
    def open(cls, folder: Path | str, fetch: Callable[[str], object] | None = None) -> Self:
        """Opens a prepared corpus. Checks every size and the arrays' digests.

        Args:
          folder: the corpus, or a cache of a corpus in a bucket.
          fetch: for a cache: called with a file's name before the file is read, and fetches it
            unless it is there and whole.

        Raises:
          CorpusMissing: there is no manifest.
          CorpusDamaged: a file is missing or is not what was written.
          CorpusOfOtherSettings: it was written in another format.
        """
        folder = Path(folder)
        if fetch is not None:
            for name in ALWAYS_READ:
                fetch(name)
        manifest = read_manifest(folder)
        for file in manifest.files if fetch is None else ():
            found = (folder / file.name).stat().st_size if (folder / file.name).exists() else None
            if found != file.num_bytes:
                problem = "it is missing" if found is None else f"it has {found} bytes"
                problem += f" and should have {file.num_bytes}"
                raise CorpusDamaged(file=folder / file.name, problem=problem, folder=folder)
        arrays = {name: _read_array(folder, name, manifest) for name in ARRAYS}
        is_there = (folder / "tokenizer.json").is_file()
        if not is_there or file_digest(folder / "tokenizer.json") != manifest.tokenizer_digest:
            problem = "its digest is not the recorded one" if is_there else "it is missing"
            raise CorpusDamaged(file=folder / "tokenizer.json", problem=problem, folder=folder)
        return cls(folder, manifest, arrays, fetch)

    @property
    def digest(self) -> str:
        return self.manifest.digest

    @property
    def num_documents(self) -> int:
        return len(self.lengths)

    @property
    def tokenizer_file(self) -> Path:
        return self._file("tokenizer.json")

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return load_tokenizer(self.tokenizer_file)

    @property
    def edge_names(self) -> EdgeNames:
        """Spelling of the tokens at the edges of its texts."""
        return edge_names_of(self.tokenizer(), self.edges.tokens)

    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def documents(self, split: str) -> np.ndarray:
        """[n] int64: the numbers of the documents of one of the `SPLITS`."""
        return np.flatnonzero(self.splits == SPLITS.index(split))

    @cached_property
    def texts(self) -> np.ndarray:
        """[N] int64: the number of each document's text, equal for the pieces of a long one. Where
        pieces are in several splits, each of them is a group (`?group=piece`), and so a text here.
        """
        is_first_N = np.array(self.edges.begins_N)
        is_first_N[1:] |= self.edges.ends_N[:-1]  # the beginning may be left out, as a duplicate
        is_first_N[:1] = True
        text_N = np.cumsum(is_first_N) - 1
        splits_T = np.zeros(text_N[-1] + 1 if len(text_N) else 0, np.int64)
        for split in SPLITS[:-1]:
            has_some_T = np.zeros(len(splits_T), dtype=bool)
            has_some_T[text_N[self.documents(split)]] = True
            splits_T += has_some_T
        return np.cumsum(is_first_N | (splits_T > 1)[text_N]) - 1

    def files(self) -> list[Receipt]:
        """Every file of the folder, the manifest first."""
        small = [self._file(name) for name in ALWAYS_READ]
        return [
            *(Receipt(file.name, file_digest(file), file.stat().st_size) for file in small),
            *(Receipt(file.name, file.digest, file.num_bytes) for file in self.manifest.files),
        ]

    def tokens(self, document_numbers: Sequence[int] | np.ndarray) -> list[np.ndarray]:
        """The tokens of some documents, in the order asked for: int32, one array each.

        Raises:
          CorpusDamaged: their file is not what was written.
        """
        numbers = np.asarray(document_numbers, dtype=np.int64)
        files = np.searchsorted(self._file_starts, numbers, side="right") - 1
        found: list[np.ndarray] = [np.zeros(0, dtype=np.int32)] * len(numbers)
        for file in np.unique(files).tolist():
            places = np.flatnonzero(files == file)
            records = (numbers[places] - self._file_starts[file]).tolist()
            try:
                read = self._reader(file).read(records)
            except (RuntimeError, ValueError) as error:  # a block's hash is not the stored one
                raise self._damaged(file, one_line(error)) from error
            for place, record in zip(places.tolist(), read, strict=True):
                tokens = np.frombuffer(record, dtype=self.manifest.token_type)
                found[place] = tokens.astype(np.int32)
        return found

    def check_tokens(self) -> None:
        """Checks the digest of every file of tokens. Raises `CorpusDamaged`."""
        for number, file in enumerate(self.manifest.files):
            path = self._file(file.name)
            if not path.exists() or file_digest(path) != file.digest:
                raise self._damaged(number, "its bytes are not those that were written (digest)")

    def _damaged(self, number: int, problem: str) -> CorpusDamaged:
        file = self.folder / self.manifest.files[number].name
        return CorpusDamaged(file=file, problem=problem, folder=self.folder)

    def _reader(self, number: int) -> Any:
        with self._lock:  # the pipeline reads ahead in a thread
            if number in self._readers:
                self._readers.move_to_end(number)
                return self._readers[number]
            file = self.manifest.files[number]
            reader = open_reader(self._file(file.name))
            if (count := reader.num_records()) != file.documents:
                problem = f"it holds {count} of {file.documents} documents"
                raise self._damaged(number, problem)
            self._readers[number] = reader
            if len(self._readers) > min(MOST_OPEN_FILES, file_limit() // 2):
                self._readers.popitem(last=False)  # a thread that reads from it keeps it open
            return self._readers[number]

    def _file(self, name: str) -> Path:
        if self._fetch is not None:
            self._fetch(name)
        return self.folder / name


class _Version(msgspec.Struct):
    format_version: int


def read_manifest(folder: Path) -> CorpusManifest:
    file = folder / "manifest.json"
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        raise CorpusMissing(folder=folder) from None
    try:
        found = msgspec.json.decode(content, type=_Version).format_version
        if found != FORMAT_VERSION:
            difference = f"format {found} where this version writes {FORMAT_VERSION}"
            raise CorpusOfOtherSettings(folder=folder, difference=difference)
        return msgspec.json.decode(content, type=CorpusManifest)
    except msgspec.DecodeError as error:
        raise CorpusDamaged(file=file, problem=str(error), folder=folder) from error


def _read_array(folder: Path, name: str, manifest: CorpusManifest) -> np.ndarray:
    file = folder / f"{name}.npy"
    try:
        values = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise CorpusDamaged(file=file, problem=str(error), folder=folder) from error
    if digest_of(values) != manifest.array_digests[name]:
        problem = "its digest is not the recorded one"
        raise CorpusDamaged(file=file, problem=problem, folder=folder)
    return values
