"""Objects in a bucket: Amazon S3, another store with its protocol, or Google Cloud Storage.

TensorStore's key-value drivers transfer the bytes (google.github.io/tensorstore/kvstore).
Credentials and region come from the environment, as they do for the providers' own programs; so
does the endpoint of another S3 (`AWS_ENDPOINT_URL`). Every request has a deadline. All requests
here may be done twice, and are retried until the store is back.

One surprise: the store may do a request and the answer be lost. A conditional write that is retried
then fails because of its own first attempt. So a failed condition does not mean that another
process wrote the object: `put` reads the object.

An object of more than `PIECE_BYTES` is several in the bucket: its first piece has its name, the
others have a number behind it.
"""

import collections
import contextlib
import functools
import itertools
import logging
import os
import random
import re
import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import xxhash

from dipaco import stopping
from dipaco.receipt import Receipt
from dipaco.store.errors import (
    BucketMissing,
    ObjectDamaged,
    ObjectMissing,
    StoreRefuses,
    StoreUnreachable,
)
from dipaco.store.layout import PIECE, piece_name

RETRY_FOR_SECONDS = 900.0  # Equal to the database's: a failover, an operator at lunch.
FIRST_SECONDS = 60.0  # For a store that has never answered: its name may be wrong.
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.1, 5.0
REQUEST_SECONDS = 30.0  # Deadline of a request. Its bytes at the slowest rate come on top.
SLOWEST_BYTES_PER_SECOND = 250_000  # Expected until a transfer takes longer.
BLOCK_BYTES = 16 << 20  # Size of one read.
# Amazon takes 5 GiB in one upload. A piece is in memory while it is sent, and what cuts an upload
# off costs one piece. A multiple of `BLOCK_BYTES`.
PIECE_BYTES = 256 << 20
AHEAD = 4  # blocks requested at once
ABSENT = b"\x02"  # TensorStore's generation of a key that has no value
# TensorStore's own retries of a request. By default it retries for minutes without a message.
RETRIES = {"max_retries": 4, "initial_delay": "50ms", "max_delay": "500ms"}
# A stalled transfer ends long before its deadline, which grows with its bytes.
STALLED_BYTES_PER_SECOND = 1000
STALLED = {
    "TENSORSTORE_CURL_CONNECT_TIMEOUT_SECONDS": "10",
    "TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS": "30",
    "TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES": str(STALLED_BYTES_PER_SECOND),
}
PROXIES = ("http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")  # curl takes these
# Errors after which a retry may help: by the beginning of TensorStore's text; of the connection;
# two that S3 counts as client errors, but that come from a slow network or a clock that jumped.
PASSING = re.compile(
    "ABORTED|UNAVAILABLE|DEADLINE_EXCEEDED|RESOURCE_EXHAUSTED|INTERNAL"
    "|.*(CURL error|RequestTimeout|RequestTimeTooSkewed)",
    re.DOTALL,
)
NOISE = re.compile(r"^[A-Z_]+: (All \d+ retry attempts failed: )?| \[.*", re.DOTALL)


class Remote:
    """The objects under one URL, `s3://BUCKET/PREFIX` or `gs://BUCKET/PREFIX`."""

    def __init__(self, url: str):
        for setting, value in STALLED.items():
            os.environ.setdefault(setting, value)  # read at the first request of the process
        import tensorstore

        self._tensorstore = tensorstore
        self.url = url
        self._lock = threading.Lock()
        self._num_waiting, self._silent_since = 0, 0.0
        self._has_answered = False
        self._slowest_bytes_per_second = float(SLOWEST_BYTES_PER_SECOND)
        self._store: Any = self._with_retry(lambda: tensorstore.KvStore.open(_spec(url)))
        self._has_answered = False  # nothing was asked

    def url_of(self, name: str) -> str:
        return f"{self.url}/{name}"

    def put(self, name: str, file: Path) -> None:
        """Makes an object of a file. Pieces of it that are there stay as they are, unless they are
        damaged. When this returns, the store has the bytes. The first piece is sent last, so that
        an object is there whole or not at all.
        """
        num_pieces = max(1, -(-file.stat().st_size // PIECE_BYTES))
        with file.open("rb") as stream:
            for number in reversed(range(num_pieces)):
                stream.seek(number * PIECE_BYTES)
                content, piece = stream.read(PIECE_BYTES), piece_name(name, number)
                if not self.write_new(piece, content) and not self._has(piece, content):
                    self.write(piece, content)

    def _has(self, piece: str, content: bytes) -> bool:
        """True if a piece that was listed is there, whole. Reads it."""
        found = xxhash.xxh3_128()
        for block in self.blocks(piece, len(content)):
            found.update(block or b"")  # None: deleted meanwhile
        return found.digest() == xxhash.xxh3_128_digest(content)

    def fetch(self, receipt: Receipt, name: str, file: Path) -> None:
        """Writes the bytes of the object `name` to a file, and compares them with its receipt.

        Raises:
          ObjectMissing, ObjectDamaged.
        """
        _, digest, num_bytes = receipt
        for is_last_try in (False, True):  # the first transfer may be damaged, not the object
            found, size = xxhash.xxh3_128(), 0
            with file.open("wb") as stream:
                for block in self.blocks(name, num_bytes):
                    if block is None:
                        raise ObjectMissing(file=self.url_of(name), name=receipt.name)
                    stream.write(block)
                    found.update(block)
                    size += len(block)
            if found.hexdigest() == digest:
                return
            if is_last_try:
                problem = f"its digest is {found.hexdigest()} instead of {digest}"
                if size != num_bytes:
                    problem = f"it has fewer than {num_bytes} bytes"
                raise ObjectDamaged(file=self.url_of(name), name=receipt.name, problem=problem)

    def write_new(self, name: str, content: bytes) -> bool:
        """Writes an object, whole or not at all, unless there is one of this name. Returns False
        if there is, possibly from a first attempt of this very request (see the top).
        """
        stamp = self._with_retry(
            lambda: self._store.write(name, content, if_equal=ABSENT), len(content)
        )
        return bool(stamp.generation)  # a lost race raises nothing

    def write(self, name: str, content: bytes) -> None:
        """Writes or replaces an object, whole or not at all."""
        self._with_retry(lambda: self._store.write(name, content), len(content))

    def read(self, name: str) -> bytes | None:
        """The content of a small object. None = there is none."""
        found = self._with_retry(lambda: self._store.read(name))
        return found.value if found.state == "value" else None

    def blocks(self, name: str, num_bytes: int) -> Iterator[bytes | None]:
        """Yields the first `num_bytes` of an object by blocks; of a shorter one only its whole
        blocks. None if there is no object.
        """

        def ask(start: int) -> Any:
            length = min(BLOCK_BYTES, num_bytes - start)
            number, start = divmod(start, PIECE_BYTES)
            place = slice(start, start + length)
            return self._store.read(piece_name(name, number), byte_range=place)

        most_bytes = min(num_bytes, BLOCK_BYTES)
        starts = iter(range(0, max(num_bytes, 1), BLOCK_BYTES))
        asked = collections.deque((start, ask(start)) for start in itertools.islice(starts, AHEAD))
        while asked:
            start, under_way = asked.popleft()
            try:
                found = self._with_retry(functools.partial(ask, start), most_bytes, under_way)
            except _Short:
                return
            asked.extend((start, ask(start)) for start in itertools.islice(starts, 1))
            yield found.value if found.state == "value" else None

    def delete(self, name: str) -> None:
        """Removes an object if it is there."""
        self._with_retry(lambda: self._store.write(name, None))
        self._delete_all(f"{name}{PIECE}")

    def delete_folder(self, name: str) -> None:
        """Removes every object whose name begins with `name/`."""
        self._delete_all(f"{name}/")

    def names(self, folder: str) -> list[str]:
        """Names of all objects under `folder/`."""
        keys = self._beginning_with(f"{folder}/")
        return [key.decode() for key in self._with_retry(lambda: self._store.list(keys))]

    def _delete_all(self, beginning: str) -> None:
        keys = self._beginning_with(beginning)
        self._with_retry(lambda: self._store.delete_range(keys))

    def _beginning_with(self, text: str) -> Any:
        return self._tensorstore.KvStore.KeyRange(text, text[:-1] + chr(ord(text[-1]) + 1))

    def _with_retry(
        self, ask: Callable[[], Any], num_bytes: int = 0, under_way: Any | None = None
    ) -> Any:
        """The result of a request, which is retried while the store does not answer.

        Args:
          ask: makes the request, and returns a future.
          num_bytes: most bytes that it transfers.
          under_way: the future of a first attempt that was made already.

        Raises:
          StoreUnreachable: for `RETRY_FOR_SECONDS`, for `FIRST_SECONDS` if it has never answered,
            as long as `stopping.patience` says, or this process is to end.
          StoreRefuses, BucketMissing: a retry would not help.
        """
        began = time.monotonic()
        wait_seconds = FIRST_WAIT_SECONDS
        with contextlib.ExitStack() as waiting:
            while True:
                future, under_way = under_way or ask(), None
                expected = self._slowest_bytes_per_second
                transfer_seconds, asked = num_bytes / expected, time.monotonic()
                timeout_seconds = stopping.most_seconds(REQUEST_SECONDS) + transfer_seconds
                try:
                    result = _result(future, timeout_seconds)
                    self._has_answered = True
                    if time.monotonic() - asked < transfer_seconds / 2:
                        self._expect(expected, 2 * expected)
                    return result
                except TimeoutError:
                    future.cancel()
                    problem = f"no answer within {timeout_seconds:.0f} s"
                    if num_bytes:  # a slow link, or one that many transfers share
                        began += transfer_seconds
                        self._expect(expected, expected / 2)
                except ValueError as error:
                    problem = self._passing_problem(str(error))
                problem += _causes(self.url)
                silent_seconds = time.monotonic() - began
                limit = stopping.most_seconds(RETRY_FOR_SECONDS)
                if not self._has_answered:
                    limit = min(limit, FIRST_SECONDS)
                if stopping.is_over() or silent_seconds > limit:
                    raise StoreUnreachable(url=self.url, seconds=silent_seconds, problem=problem)
                if wait_seconds == FIRST_WAIT_SECONDS:
                    waiting.enter_context(self._outage(problem))
                time.sleep(wait_seconds * random.uniform(0.5, 1.0))  # or all workers retry at once
                wait_seconds = min(2 * wait_seconds, LONGEST_WAIT_SECONDS)

    def _expect(self, before: float, rate: float) -> None:
        """Gives transfers as much time as this rate takes, unless another transfer of the same time
        has said so already.
        """
        with self._lock:
            if self._slowest_bytes_per_second == before:
                bounded = min(max(rate, STALLED_BYTES_PER_SECOND), SLOWEST_BYTES_PER_SECOND)
                self._slowest_bytes_per_second = bounded

    @contextlib.contextmanager
    def _outage(self, problem: str) -> Generator[None]:
        """Logs the beginning and end of an outage once, however many threads wait."""
        with self._lock:
            self._num_waiting += 1
            if self._num_waiting == 1:
                self._silent_since = time.monotonic()
                _log.warning("The store %s: %s. Waiting for it.", self.url, problem)
        try:
            yield
        finally:
            with self._lock:
                self._num_waiting -= 1
                if self._num_waiting == 0:
                    silent_seconds = time.monotonic() - self._silent_since
                    _log.warning(
                        "The store %s did not answer for %.0f s.", self.url, silent_seconds
                    )

    def _passing_problem(self, text: str) -> str:
        """A passing problem, shortened for a person. Raises if a retry would not help."""
        problem = NOISE.sub("", text)
        if text.startswith("OUT_OF_RANGE"):
            raise _Short
        if "NoSuchBucket" in text or "bucket does not exist" in text:
            raise BucketMissing(url=self.url)
        if not PASSING.match(text):
            raise StoreRefuses(url=self.url, problem=problem)
        return problem


def _causes(url: str) -> str:
    """What in the environment may keep a store from answering, as a part of a sentence."""
    causes = []
    if proxies := [name for name in PROXIES if os.environ.get(name)]:
        causes.append(f"by way of a proxy? {', '.join(proxies)} is set")
    if url.startswith("s3:") and _credentials() == "anonymous":
        causes.append("without credentials? AWS_ACCESS_KEY_ID is not set")
    return f" ({'; '.join(causes)})" if causes else ""


def _result(future: Any, timeout_seconds: float) -> Any:
    """The result of a request. A process that is to end waits for no slow one. Raises
    `TimeoutError`.
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        left = deadline - time.monotonic()
        stopping.note_progress()  # A transfer that stalls is ended by TensorStore, in 30 s.
        try:
            return future.result(timeout=max(0.0, min(left, REQUEST_SECONDS)))
        except TimeoutError:
            if left <= REQUEST_SECONDS or stopping.is_over():
                raise


# Variables of services that hand out credentials, and where Amazon's machines say what they are.
AWS_TOKENS = {
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
}
AMAZON_NAMES = [Path("/sys/class/dmi/id", name) for name in ("sys_vendor", "bios_version")]


class _Short(Exception):
    """An object has fewer bytes than requested."""


_log = logging.getLogger("dipaco")


def _spec(url: str) -> dict[str, Any]:
    """TensorStore's description of the store."""
    scheme, _, place = url.partition("://")
    bucket, _, path = place.partition("/")
    common = {"bucket": bucket, "path": f"{path}/"}
    if scheme == "gs":
        return common | {"driver": "gcs", "context": {"gcs_request_retries": RETRIES}}
    spec: dict[str, Any] = common | {"driver": "s3", "context": {"s3_request_retries": RETRIES}}
    environment = os.environ
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    if endpoint:  # TensorStore does not read the variables
        spec |= {"endpoint": endpoint.rstrip("/")}
        region = region or "us-east-1"  # required, and rarely read by other stores than Amazon's
    if region:
        spec |= {"aws_region": region}
    if kind := _credentials():
        spec |= {"aws_credentials": {"type": kind}}
    return spec


def _credentials() -> str:
    """What TensorStore calls the credentials for S3. Empty = it looks for them, which writes lines
    of its C++ wherever there are none. A machine without any is refused in a sentence.
    """
    if "AWS_ACCESS_KEY_ID" in os.environ:
        return "environment"
    folder = Path.home() / ".aws"
    files = [
        Path(os.environ.get("AWS_CONFIG_FILE", folder / "config")),
        Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE", folder / "credentials")),
    ]
    if any(map(Path.exists, files)) or not os.environ.keys().isdisjoint(AWS_TOKENS):
        return ""
    for file in AMAZON_NAMES:
        with contextlib.suppress(OSError):
            if "amazon" in file.read_text().lower():
                return ""
    return "anonymous"
