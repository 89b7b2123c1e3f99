"""Objects in a bucket: Amazon S3, whatever speaks its protocol, or Google Cloud Storage.

TensorStore's key-value drivers carry the bytes (google.github.io/tensorstore/kvstore). Credentials
and region come from the environment, as they do for the providers' own programs; so does the
endpoint of another S3 (`AWS_ENDPOINT_URL`). Every request has a deadline, and what may be done
twice is asked again until the store is back.

One surprise: a request may be done and its answer lost. Asked again, a write that must be the first
is then told that it came second, by itself. So "not the first" is never taken for "not mine": `put`
reads what is there.
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

from dipaco.receipt import Receipt
from dipaco.store.errors import (
    BucketMissing,
    ObjectDamaged,
    ObjectMissing,
    StoreRefuses,
    StoreUnreachable,
)

RETRY_FOR_SECONDS = 900.0  # as for the database: a failover, somebody's lunch
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.1, 5.0
REQUEST_SECONDS = 30.0  # a deadline for one request, and for its bytes at the slowest rate
SLOWEST_BYTES_PER_SECOND = 250_000
BLOCK_BYTES = 16 << 20  # of one read
AHEAD = 4  # blocks that are read at once
ABSENT = b"\x02"  # TensorStore's generation of a key that has no value
# Of a request, before we hear of it. By default TensorStore tries for minutes and says nothing.
RETRIES = {"max_retries": 4, "initial_delay": "50ms", "max_delay": "500ms"}
# A transfer that stands still ends long before its deadline, which grows with its bytes.
STALLED = {
    "TENSORSTORE_CURL_CONNECT_TIMEOUT_SECONDS": "10",
    "TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS": "30",
    "TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES": "1000",
}
# Where asking again may help: what TensorStore's errors begin with; the connection's troubles; and
# what S3 calls the client's mistakes, but are those of a network or of a clock that jumped.
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
        self._store: Any = self._with_retry(lambda: tensorstore.KvStore.open(_spec(url)))

    def url_of(self, name: str) -> str:
        return f"{self.url}/{name}"

    def put(self, name: str, file: Path, digest: str) -> None:
        """Makes an object of a file, whole or not at all, once: where there is one already, it is
        left as it is, unless it is damaged. When this returns, the store has the bytes.

        S3 takes 5 GB in one piece, and a larger file is refused.
        """
        content = file.read_bytes()
        if self.write_new(name, content):
            return
        found = xxhash.xxh3_128()
        for block in self.blocks(name, len(content)):
            found.update(block or b"")  # None: deleted since then
        if found.hexdigest() != digest:
            self.write(name, content)

    def fetch(self, receipt: Receipt, name: str, file: Path) -> None:
        """Writes the bytes of an object that goes by `name` here to a file, and checks them.

        Raises:
          ObjectMissing, ObjectDamaged.
        """
        _, digest, num_bytes = receipt
        for is_last_try in (False, True):  # what was damaged may be the transfer
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
        """Writes an object unless there is one of this name; False where there is, which may be
        our own (see above). Whole or not at all.
        """
        stamp = self._with_retry(
            lambda: self._store.write(name, content, if_equal=ABSENT), len(content)
        )
        return bool(stamp.generation)  # a lost race raises nothing

    def write(self, name: str, content: bytes) -> None:
        """Writes an object in place of what is there. Whole or not at all."""
        self._with_retry(lambda: self._store.write(name, content), len(content))

    def read(self, name: str) -> bytes | None:
        """A small object; None where there is none."""
        found = self._with_retry(lambda: self._store.read(name))
        return found.value if found.state == "value" else None

    def blocks(self, name: str, num_bytes: int) -> Iterator[bytes | None]:
        """The first `num_bytes` of an object, a block at a time; where it has fewer, whole blocks
        of them; None where there is no object.
        """

        def ask(start: int) -> Any:
            end = min(start + BLOCK_BYTES, num_bytes)
            return self._store.read(name, byte_range=slice(start, end))

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
        """Removes an object; one that is gone already is fine."""
        self._with_retry(lambda: self._store.write(name, None))

    def delete_folder(self, name: str) -> None:
        """Removes every object whose name begins with `name/`."""
        self._with_retry(lambda: self._store.delete_range(self._under(name)))

    def names(self, folder: str) -> list[str]:
        """Of all objects whose name begins with `folder/`."""
        return [
            key.decode() for key in self._with_retry(lambda: self._store.list(self._under(folder)))
        ]

    def _under(self, folder: str) -> Any:
        return self._tensorstore.KvStore.KeyRange(f"{folder}/", f"{folder}0")  # 0 follows /

    def _with_retry(
        self, ask: Callable[[], Any], num_bytes: int = 0, under_way: Any | None = None
    ) -> Any:
        """What a request comes to; it is made again for as long as the store does not answer.

        Args:
          ask: makes it.
          num_bytes: that it carries, at most.
          under_way: it has been made once already.

        Raises:
          StoreUnreachable: for `RETRY_FOR_SECONDS`.
          StoreRefuses, BucketMissing: asking again would not help.
        """
        began = time.monotonic()
        wait_seconds = FIRST_WAIT_SECONDS
        timeout_seconds = REQUEST_SECONDS + num_bytes / SLOWEST_BYTES_PER_SECOND
        with contextlib.ExitStack() as waiting:
            while True:
                future, under_way = under_way or ask(), None
                try:
                    return future.result(timeout=timeout_seconds)
                except TimeoutError:
                    future.cancel()
                    problem = f"no answer within {timeout_seconds:.0f} s"
                except ValueError as error:
                    problem = self._passing_problem(str(error))
                silent_seconds = time.monotonic() - began
                if silent_seconds > RETRY_FOR_SECONDS:
                    raise StoreUnreachable(url=self.url, seconds=silent_seconds, problem=problem)
                if wait_seconds == FIRST_WAIT_SECONDS:
                    waiting.enter_context(self._outage(problem))
                time.sleep(wait_seconds * random.uniform(0.5, 1.0))  # not all workers at once
                wait_seconds = min(2 * wait_seconds, LONGEST_WAIT_SECONDS)

    @contextlib.contextmanager
    def _outage(self, problem: str) -> Generator[None]:
        """Somebody waits for the store. It is told once, however many do."""
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
                    _log.warning("The store %s was away for %.0f s.", self.url, silent_seconds)

    def _passing_problem(self, text: str) -> str:
        """What keeps the store from answering for now. Raises where that will not pass."""
        problem = NOISE.sub("", text)
        if text.startswith("OUT_OF_RANGE"):
            raise _Short
        if "NoSuchBucket" in text or "bucket does not exist" in text:
            raise BucketMissing(url=self.url)
        if not PASSING.match(text):
            raise StoreRefuses(url=self.url, problem=problem)
        return problem


class _Short(Exception):
    """An object has fewer bytes than were asked for."""


_log = logging.getLogger("dipaco")


def _spec(url: str) -> dict[str, Any]:
    """What TensorStore is to open."""
    scheme, _, place = url.partition("://")
    bucket, _, path = place.partition("/")
    common = {"bucket": bucket, "path": f"{path}/"}
    if scheme == "gs":
        return common | {"driver": "gcs", "context": {"gcs_request_retries": RETRIES}}
    spec: dict[str, Any] = common | {"driver": "s3", "context": {"s3_request_retries": RETRIES}}
    environment = os.environ
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    if endpoint:  # TensorStore does not read it
        spec |= {"endpoint": endpoint.rstrip("/")}
        region = region or "us-east-1"  # which others than Amazon rarely look at
    if region:
        spec |= {"aws_region": region}
    if "AWS_ACCESS_KEY_ID" in environment:  # or it complains of profile files that are not there
        spec |= {"aws_credentials": {"type": "environment"}}
    return spec
