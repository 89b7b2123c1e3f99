"""Whole objects in a folder, or in a bucket with the folder as its cache: written once, named by
digest, verified on every read.

A file is written under `partial/`, flushed to the disk, then renamed into place and the folder
flushed: after a crash at any point the object is there whole, or not at all. A bucket has the
object before the receipt is given. Its folder is only a cache: an object that is missing or
damaged there is fetched again.
"""

import collections
import contextlib
import functools
import io
import json
import logging
import mmap
import os
import shutil
import time
import uuid
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from dipaco import stopping
from dipaco.files import (
    file_digest,
    flush,
    install_file,
    make_folder,
    now_in,
    rename,
    rename_durably,
    translate_os_errors,
    write_atomically,
)
from dipaco.receipt import Receipt
from dipaco.stopping import note_progress
from dipaco.store.cache import FileCache
from dipaco.store.errors import ObjectDamaged, ObjectMissing
from dipaco.store.fetch_lock import fetch_lock, is_locked, locked_folder
from dipaco.store.layout import (
    SNAPSHOTS,
    is_folder,
    is_object,
    object_of,
    remote_name,
)
from dipaco.store.remote import Remote
from dipaco.store.verification import (
    DIGESTS,
    UNSENT,
    check_file,
    check_folder,
    list_folder,
    map_file,
    open_file,
    parse_listing,
    receipt_of,
)

FRESH_SECONDS = 3600.0  # A partial file may be in use. Longer than any wait for a bucket.
TRANSFERS_AT_ONCE = 8
# An object that was missed is looked for again so soon, and for so long at least: longer than file
# systems over a network keep such an answer. One in the store's list is waited for.
FIRST_LOOK_SECONDS, MISSED_SECONDS, LISTED_SECONDS = 0.1, 6.0, 60.0

Checked = TypeVar("Checked")

_log = logging.getLogger("dipaco")


class Objects:
    """The objects of one run.

    Args:
      root: the run's folder on this machine.
      remote: the objects in the bucket. None = the run is in the folder.
      cache: with a bucket, bounds the bytes in the folder.
    """

    def __init__(self, root: Path, remote: Remote | None = None, cache: FileCache | None = None):
        self.root = root
        self.remote = remote
        self._cache = cache

    def write(self, kind: str, suffix: str, write_file: Callable[[Path], object]) -> Receipt:
        """Makes an object of a file, which `write_file` writes at the path that it is given.

        Raises:
          DiskFull, NotWritable, StoreUnreachable, StoreRefuses: nothing was added or changed.
        """
        with self._partial() as temporary, translate_os_errors(temporary):
            write_file(temporary)
            num_bytes = temporary.stat().st_size
            digest = file_digest(temporary)
            receipt = Receipt(f"objects/{kind}/{digest}.{suffix}", digest, num_bytes)
            self._put(receipt, temporary)
        return receipt

    def has(self, receipt: Receipt) -> bool:
        """True if an object of this name and size is in the folder. A read checks its bytes too."""
        file = self.place_of(receipt.name)
        self._used(file)  # it is about to be read
        try:
            return file.stat().st_size == receipt.num_bytes
        except FileNotFoundError:
            return False

    def keep(self, receipt: Receipt, write_file: Callable[[Path], object]) -> bool:
        """Puts what was computed here into the folder, in the place of a fetch, if it has the
        digest of an object that the bucket has. False: it has not, and nothing was kept.
        """
        with self._partial() as temporary, translate_os_errors(temporary):
            write_file(temporary)
            if file_digest(temporary) != receipt.digest:
                return False
            self._place_fetched(temporary, self.place_of(receipt.name))
        return True

    def place_of(self, name: str) -> Path:
        """The place of an object in the folder. Every name passes here or `delete`.

        Raises:
          ObjectDamaged: this cannot be an object's name. It may lead anywhere.
        """
        if not is_object(name):
            problem = "this is not the name of an object of a run"
            raise ObjectDamaged(file=f"`{name}`", name=name, problem=problem)
        return self.root / name

    def write_bytes(self, kind: str, suffix: str, content: bytes) -> Receipt:
        """Makes an object of `content`."""
        return self.write(kind, suffix, lambda file: file.write_bytes(content))

    def write_folder(
        self, name: str, write_files: Callable[[Path], object], *, is_sent: bool = True
    ) -> None:
        """Makes an object of a folder, which `write_files` writes at the path that it is given. The
        folder counts once its last file is there, the list of the others. Unless `is_sent`, only
        this machine has it. Raises as `write`.
        """
        final = self.place_of(name)
        with self._partial() as temporary, translate_os_errors(final):
            write_files(temporary)
            files = list_folder(temporary)
            (temporary / DIGESTS).write_text(json.dumps(files))
            if self.remote is not None and is_sent:
                put = functools.partial(_put_file, self.remote, name, temporary)
                _transfer_all(put, files)
                put(receipt_of(temporary, temporary / DIGESTS))
            else:
                if self.remote is not None:
                    (temporary / UNSENT).touch()  # the cache leaves it alone
                for written in temporary.rglob("*"):
                    flush(written)
                flush(temporary)
            make_folder(final.parent)
            shutil.rmtree(final, ignore_errors=True)  # left by an attempt of this name
            rename_durably(temporary, final)
            self._added(final, sum(file.num_bytes for file in files))

    def file(self, receipt: Receipt) -> Path:
        """The object's file, every byte of it checked.

        Raises:
          ObjectMissing, ObjectDamaged, StoreUnreachable, StoreRefuses.
        """
        self._checked(receipt, check_file)
        return self.place_of(receipt.name)

    def open(self, receipt: Receipt) -> io.BufferedReader:
        """The object's file open for reading, every byte of it checked. It stays readable when the
        file is deleted, as by those who go on after a worker lost its claim. Raises as `file`.
        """
        return self._checked(receipt, open_file)

    def pages(self, receipt: Receipt) -> mmap.mmap:
        """The object's file mapped into memory, read-only, every byte of it checked. The pages stay
        readable when the file is deleted. Raises as `file`.
        """
        return self._checked(receipt, map_file)

    def _checked(self, receipt: Receipt, check: Callable[[Path, Receipt], Checked]) -> Checked:
        file = self.place_of(receipt.name)
        self._used(file)  # before the check, or another process might remove it meanwhile
        try:
            return check(file, receipt)
        except (ObjectMissing, ObjectDamaged):
            if self.remote is None:
                raise
            self._fetch(self.remote, receipt)
            return check(file, receipt)

    def folder(self, name: str) -> Path:
        """The folder, every byte in it checked. Raises as `file`."""
        folder = self.place_of(name)
        self._used(*folder.rglob("*"))
        try:
            check_folder(folder, name)
        except (ObjectMissing, ObjectDamaged):
            if self.remote is None:
                raise
            self._fetch_folder(self.remote, name)
        return folder

    def fetch_folder_again(self, name: str) -> bool:
        """Fetches a folder that is whole here and yet not what was recorded: a run that was at this
        URL before may have left it. False: there is no bucket, or it has no such folder.
        """
        if self.remote is None:
            return False
        try:
            self._fetch_folder(self.remote, name)
        except ObjectMissing:
            return False
        (self.place_of(name) / UNSENT).unlink(missing_ok=True)
        return True

    def need_shared(self, name: str) -> None:
        """Raises `ObjectMissing`: the bucket has no such object. This disk may still have it, after
        another machine has deleted it. What is in a folder alone is there for everybody.
        """
        if self.remote is not None:
            listed = f"{name}/{DIGESTS}" if is_folder(name) else name
            if next(self.remote.blocks(listed, 1), b"") is None:
                raise ObjectMissing(file=self.remote.url_of(listed), name=name)

    def turns_up(self, error: ObjectMissing, *, was_sent: bool) -> bool:
        """True if an object that a read has missed is there after all. A store may say for a while
        that it has none: from a cache of such answers, or since it is consistent only later. It is
        asked again, for a byte and for its list, and for long if the list has the object. One that
        may never have been sent is asked for once.
        """
        file, wait_seconds = str(error.values["file"]), FIRST_LOOK_SECONDS
        began = time.monotonic()
        while not stopping.is_over():
            time.sleep(wait_seconds)
            wait_seconds *= 2
            is_listed, is_there = self._looks_for(file)
            if is_there:
                return True
            seconds = LISTED_SECONDS if is_listed else MISSED_SECONDS if was_sent else 0.0
            if time.monotonic() - began > seconds:
                break
        return False

    def _looks_for(self, file: str) -> tuple[bool, bool]:
        """Returns whether a file, or one in the bucket, is in the list of its folder, and whether
        it can be read.
        """
        if self.remote is None or not file.startswith(self.remote.url):
            folder, name = os.path.split(file)
            with contextlib.suppress(OSError):  # NFS forgets here that a file was not there
                return name in os.listdir(folder), Path(file).exists()
            return False, False
        name = file.removeprefix(f"{self.remote.url}/")
        is_listed = name in self.remote.names(name.rpartition("/")[0])
        return is_listed, next(self.remote.blocks(name, 1), b"") is not None

    def read_bytes(self, receipt: Receipt) -> bytes:
        """The object's content, checked."""
        with self.open(receipt) as stream:
            return stream.read()

    def publish(self, file: Path, content: bytes) -> None:
        """Writes a file that people read (a report) to the bucket, in place of an older one."""
        if self.remote is not None:
            self.remote.write(file.relative_to(self.root).as_posix(), content)

    def delete(self, name: str) -> None:
        """Removes an object, a file or a folder, if it is there. What is not the name of
        an object is left alone, with a warning.
        """
        if not is_object(name):
            _log.warning("Not deleted: `%s` is not the name of an object of this run.", name)
            return
        target = self.place_of(name)
        if is_folder(name):
            shutil.rmtree(target, ignore_errors=True)
        else:
            target.unlink(missing_ok=True)
        if self.remote is not None:
            (self.remote.delete_folder if is_folder(name) else self.remote.delete)(name)

    def need_no_unsent(self) -> None:
        """The run is finished: what this machine has not sent may go when room is needed."""
        for marker in (self.root / SNAPSHOTS).rglob(UNSENT):
            marker.unlink(missing_ok=True)

    def delete_folder_if_empty(self, name: str) -> None:
        """Removes the folder that an object was in, if it is empty now."""
        if is_object(name):
            with contextlib.suppress(OSError):
                (self.root / name).parent.rmdir()

    def delete_partial_writes(self, *, is_alone: bool) -> None:
        """Removes partial files of interrupted writes.

        Args:
          is_alone: no process, on any machine, writes or fetches objects of the run. Else what is
            locked or fresh stays: it may be in use, and not every shared file system has locks.
        """
        partial = self.root / "partial"
        if is_alone:
            shutil.rmtree(partial, ignore_errors=True)
        elif partial.is_dir():
            with translate_os_errors(partial):
                old_seconds = now_in(partial) - FRESH_SECONDS
            for leftover in partial.glob("*"):
                with contextlib.suppress(FileNotFoundError):
                    times = [each.stat().st_mtime for each in (leftover, *leftover.rglob("*"))]
                    if max(times) < old_seconds and not is_locked(leftover):
                        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()

    def names(self, *folders: str) -> set[str]:
        """Names of the objects in some folders, here and in the bucket."""
        there = [place for folder in folders for place in (self.root / folder).rglob("*")]
        places = {place.relative_to(self.root).as_posix(): place for place in there}
        # An object that is a folder may have lost all its files, where a process was killed.
        names = {name for name, at in places.items() if is_folder(name) or not at.is_dir()}
        if self.remote is not None:
            names |= {name for folder in folders for name in self.remote.names(folder)}
        return {object_of(name) for name in names if is_object(name)}

    @contextlib.contextmanager
    def _partial(self) -> Generator[Path]:
        """A path to write a partial file or folder to. It is removed afterwards. Its folder is
        locked, so that nobody takes it for what a dead process left, however long it is sent.
        """
        folder = self.root / "partial" / uuid.uuid4().hex
        with translate_os_errors(folder):
            folder.mkdir(parents=True)
        with locked_folder(folder):
            try:
                yield folder / "object"
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def _put(self, receipt: Receipt, temporary: Path) -> None:
        note_progress()
        final = self.place_of(receipt.name)
        if self.remote is None:
            # The same name means the same bytes. Replacing repairs one that the disk damaged.
            install_file(temporary, final)
            return
        self.remote.put(remote_name(receipt), temporary)
        self._place_fetched(temporary, final)

    def _place_fetched(self, temporary: Path, final: Path) -> None:
        """Same as `install_file`, without flushing: it can be fetched again."""
        final.parent.mkdir(parents=True, exist_ok=True)
        rename(temporary, final)
        self._added(final, final.stat().st_size)

    def _used(self, *files: Path) -> None:
        if self._cache is not None:
            for file in files:
                self._cache.used(file)

    def _added(self, final: Path, num_bytes: int) -> None:
        self._used(final)
        if self._cache is not None:
            self._cache.added(num_bytes)

    def _fetch(self, remote: Remote, receipt: Receipt) -> None:
        """Fetches an object, unless another process on this machine has done so meanwhile."""
        final = self.place_of(receipt.name)
        with fetch_lock(self.root, receipt.name):
            with contextlib.suppress(ObjectMissing, ObjectDamaged):
                return check_file(final, receipt)
            with self._partial() as temporary, translate_os_errors(temporary):
                remote.fetch(receipt, remote_name(receipt), temporary)
                self._place_fetched(temporary, final)
        return None

    def _fetch_folder(self, remote: Remote, name: str) -> None:
        listing, url = f"{name}/{DIGESTS}", remote.url_of(name)
        content = remote.read(listing)
        if content is None:
            raise ObjectMissing(file=remote.url_of(listing), name=name)

        def fetch(receipt: Receipt) -> None:
            try:
                self.file(receipt._replace(name=f"{name}/{receipt.name}"))
            except ObjectMissing as error:
                raise ObjectMissing(file=error.values["file"], name=name) from error
            except ObjectDamaged as error:
                problem = f"`{receipt.name}`: {error.values['problem']}"
                raise ObjectDamaged(file=url, name=name, problem=problem) from error

        _transfer_all(fetch, parse_listing(content, url, name))
        write_atomically(self.place_of(name) / DIGESTS, content)


def _put_file(remote: Remote, name: str, folder: Path, file: Receipt) -> None:
    remote.put(f"{name}/{file.name}", folder / file.name)


def _transfer_all(transfer: Callable[[Receipt], None], files: list[Receipt]) -> None:
    """Transfers files in parallel: small ones cost round trips rather than bytes."""
    with ThreadPoolExecutor(TRANSFERS_AT_ONCE) as threads:
        collections.deque(threads.map(transfer, files), maxlen=0)
