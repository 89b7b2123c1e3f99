"""Whole objects in a folder: written once, named by digest, verified on every read.

A file is written beside its place, flushed to the disk, then renamed into place and the folder
flushed: after a crash at any point the object is there whole, or not at all.
"""

import contextlib
import errno
import os
import re
import shutil
import uuid
from collections.abc import Callable, Container, Generator
from pathlib import Path

from dipaco.data.files import file_digest, rename_durably
from dipaco.errors import DiskFull, NotWritable, ObjectDamaged, ObjectMissing
from dipaco.receipt import Receipt


class Objects:
    """The objects under one folder."""

    def __init__(self, root: Path):
        self.root = root

    def write(self, kind: str, suffix: str, write_file: Callable[[Path], object]) -> Receipt:
        """Makes an object of the file that `write_file` writes at the place it is given.

        Raises:
          DiskFull, NotWritable: nothing was added, and nothing that was there has changed.
        """
        temporary = self.root / "partial" / uuid.uuid4().hex
        with said_plainly(temporary):
            temporary.parent.mkdir(parents=True, exist_ok=True)
            try:
                write_file(temporary)
                num_bytes = temporary.stat().st_size
                digest = file_digest(temporary)
                receipt = Receipt(f"objects/{kind}/{digest}.{suffix}", digest, num_bytes)
                place(temporary, self.root / receipt.name)
            finally:
                temporary.unlink(missing_ok=True)
        return receipt

    def write_bytes(self, kind: str, suffix: str, content: bytes) -> Receipt:
        """Makes an object of `content`."""
        return self.write(kind, suffix, lambda file: file.write_bytes(content))

    def file(self, receipt: Receipt) -> Path:
        """The object's file, after checking every byte of it.

        Raises:
          ObjectMissing, ObjectDamaged.
        """
        name, digest, num_bytes = receipt
        file = self.root / name
        try:
            size = file.stat().st_size
            if size != num_bytes:
                raise ObjectDamaged(file=file, problem=f"{size} bytes instead of {num_bytes}")
            found = file_digest(file)
        except FileNotFoundError as error:
            raise ObjectMissing(file=file) from error
        if found != digest:
            raise ObjectDamaged(file=file, problem=f"its digest is {found} instead of {digest}")
        return file

    def read_bytes(self, receipt: Receipt) -> bytes:
        """The object's content, checked."""
        return self.file(receipt).read_bytes()

    def delete(self, name: str) -> None:
        """Removes an object or a folder of them; one that is gone already is fine."""
        target = self.root / name
        if target.is_dir():
            shutil.rmtree(target, ignore_errors=True)
        else:
            target.unlink(missing_ok=True)

    def delete_folder_if_empty(self, name: str) -> None:
        """Removes the folder that held an object, if it held nothing else."""
        with contextlib.suppress(OSError):
            (self.root / name).parent.rmdir()

    def sweep(self) -> None:
        """Removes what interrupted writes left behind. Only where nobody writes."""
        shutil.rmtree(self.root / "partial", ignore_errors=True)

    def keep_only(self, live: Container[str]) -> None:
        """Removes contributions and snapshots that are not among the names in `live`: superseded
        ones, and those of attempts that were never recorded. Only where nobody writes.
        """
        messages = (self.root / "objects" / "messages").rglob("*.safetensors")
        for found in [*messages, *self.root.glob("snapshots/*/*/*")]:
            name = found.relative_to(self.root).as_posix()
            if name not in live:
                self.delete(name)


def place(temporary: Path, final: Path) -> None:
    """Puts a finished file at its name, durably, in place of what is there."""
    make_folder(final.parent)
    temporary.chmod(0o644)  # some writers make files that their owner alone can read
    flush(temporary)
    # The same name means the same bytes; replacing mends an object that the disk has damaged.
    rename_durably(temporary, final)


def make_folder(folder: Path) -> None:
    """Makes a folder and its parents, durably."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        flush(folder.parent)


def flush(place: Path) -> None:
    """Waits until a file's bytes, or a folder's names, are on the disk."""
    descriptor = os.open(place, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(file: Path, content: bytes) -> None:
    """Replaces a file that people read (a report), whole or not at all."""
    temporary = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
    with said_plainly(file):
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(content)
            place(temporary, file)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def said_plainly(file: Path) -> Generator[None]:
    """Turns what the operating system says about writing into a sentence, even where a library
    (safetensors, TensorStore) tells it in an error of its own.
    """
    try:
        yield
    except Exception as error:
        number = error.errno if isinstance(error, OSError) else _system_error_in(str(error))
        if number in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(file=file) from error
        if number is not None or isinstance(error, OSError):
            problem = os.strerror(number) if number is not None else error
            raise NotWritable(file=file, problem=problem) from error
        raise


def _system_error_in(text: str) -> int | None:
    """The number that `os error 28` or `os_error_code='28'` tells."""
    found = re.search(r"os[ _]error(?:_code=')? ?(\d+)", text)
    return int(found[1]) if found else None
