"""Files written whole or not at all, known by digest. A full disk becomes a sentence.

A file is written under another name in its folder, flushed to the disk, renamed, and the folder
flushed. After a crash at any point the whole new file is there, or the one before it.
"""

import contextlib
import errno
import io
import os
import re
import shutil
import stat
import tempfile
import uuid
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import xxhash

from dipaco.errors import DiskFull, NotWritable

if TYPE_CHECKING:
    import numpy as np

try:
    import resource
except ImportError:  # Windows: no such limit
    resource = None

BLOCK_BYTES = 1 << 18
NO_LIMIT = 1 << 20  # open files, where the system names no number
PRIVATE = 0o600  # mode of files that only their owner may read


def write_whole(file: Path, write: Callable[[BinaryIO], object]) -> None:
    """Writes a file that this process alone writes: the partial file of a killed attempt has the
    same name, and is overwritten.

    Raises:
      DiskFull, NotWritable: what was there before is whole.
    """
    partial = file.with_name(file.name + ".partial")
    with translate_os_errors(file):
        with partial.open("wb") as stream:
            write(stream)
        flush(partial)
        rename_durably(partial, file)


def write_arrays(file: Path, arrays: Mapping[str, Any]) -> None:
    """Writes named arrays as one .npz. Raises as `write_whole`."""
    import numpy as np  # here: a ledger is opened without it

    write_whole(file, lambda stream: np.savez(stream, **arrays))


def write_atomically(file: Path, content: bytes) -> None:
    """Writes a file that several processes may write at once, and its folder.

    Raises:
      DiskFull, NotWritable: what was there before is whole.
    """
    temporary = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
    with translate_os_errors(file):
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(content)
            install_file(temporary, file)
        finally:
            temporary.unlink(missing_ok=True)


def write_new(file: Path, content: bytes) -> bool:
    """Writes a file, and its folder, unless there is one of this name: False. Of several processes
    that do so at once, one writes it.

    Raises:
      DiskFull, NotWritable.
    """
    temporary = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
    with translate_os_errors(file):
        try:
            make_folder(file.parent)
            temporary.write_bytes(content)
            flush(temporary)
            try:
                os.link(temporary, file)
            except FileExistsError:
                return False
            except OSError:  # a file system without links
                if file.exists():
                    return False
                temporary.replace(file)
            flush(file.parent)
            return True
        finally:
            temporary.unlink(missing_ok=True)


def install_file(temporary: Path, final: Path, mode: int | None = None) -> None:
    """Puts a finished file at its name, durably, in place of any file there. Its mode is that of a
    new file, unless `mode` is given.
    """
    make_folder(final.parent)
    open_up(temporary) if mode is None else temporary.chmod(mode)
    flush(temporary)
    rename_durably(temporary, final)


def open_up(file: Path) -> None:
    """Gives a file that a library (safetensors) made for its owner alone the mode of any new file,
    which follows the umask. Asking for the umask would change it for all threads.
    """
    if not file.stat().st_mode & 0o077:
        probe = file.with_name(f"{file.name}.mode")
        probe.touch()
        file.chmod(stat.S_IMODE(probe.stat().st_mode))
        probe.unlink()


def now_in(folder: Path) -> float:
    """Seconds of the clock that files in a folder get their times from: the file server's."""
    with tempfile.TemporaryFile(dir=folder) as probe:
        probe.write(b".")
        probe.flush()
        os.utime(probe.fileno())
        return os.fstat(probe.fileno()).st_mtime


def rename_durably(partial: Path, file: Path) -> None:
    """Gives a flushed file or folder its name, and flushes the folder that holds the name."""
    rename(partial, file)
    flush(file.parent)


def rename(partial: Path, file: Path) -> None:
    """Gives a file or folder its name. Another process may have removed the folder for it, which
    was empty, after it was made.
    """
    try:
        partial.replace(file)
    except FileNotFoundError:
        make_folder(file.parent)
        partial.replace(file)


def make_folder(folder: Path) -> None:
    """Makes a folder and its parents, durably."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        flush(folder.parent)


def link_folder(source: Path, target: Path) -> None:
    """Links all files into another folder. A corpus's manifest is last, since it means "finished".

    Files here are replaced, never written into, so a change under one name leaves the other as it
    was. On a file system without links they are copied.
    """
    files = sorted(
        (file for file in source.rglob("*") if file.is_file()),
        key=lambda file: (file.name == "manifest.json", file),
    )
    for file in files:
        place_at = target / file.relative_to(source)
        make_folder(place_at.parent)
        with contextlib.suppress(FileExistsError):
            link(file, place_at)
    for folder in {target / file.relative_to(source).parent for file in files}:
        flush(folder)


def link(file: Path, name: Path) -> None:
    """Gives a file another name. On a file system without links it is copied."""
    try:
        os.link(file, name)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        temporary = name.with_name(f".{name.name}.{uuid.uuid4().hex}")
        shutil.copyfile(file, temporary)
        install_file(temporary, name)


def flush(place: Path) -> None:
    """Waits until a file's bytes, or a folder's names, are on the disk."""
    descriptor = os.open(place, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def translate_os_errors(file: Path) -> Generator[None]:
    """Turns an error of the operating system while `file` is written into `DiskFull` or
    `NotWritable`, also if a library (safetensors, TensorStore) reports it in its own error.
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
    """28 for a text with `os error 28` or `os_error_code='28'`. None without such a number."""
    found = re.search(r"os[ _]error(?:_code=')? ?(\d+)", text)
    return int(found[1]) if found else None


def file_digest(file: Path) -> str:
    """xxh3 (128 bits, hexadecimal) of a file's bytes."""
    with file.open("rb", buffering=0) as stream:
        return stream_digest(stream)


def stream_digest(stream: io.FileIO) -> str:
    """The digest of an open file's bytes from here on, read block by block."""
    digest = xxhash.xxh3_128()
    # One buffer, which stays in the cache: 6.0 GB/s, against 5.0 with a new megabyte every time.
    block = memoryview(bytearray(BLOCK_BYTES))
    while num_bytes := stream.readinto(block):
        digest.update(block[:num_bytes])
    return digest.hexdigest()


def digest_of(*values: "np.ndarray | str | int") -> str:
    """xxh3 (128 bits) of arrays, with type and shape, and of plain values, in this order."""
    import numpy as np

    digest = xxhash.xxh3_128()
    for value in values:
        if isinstance(value, np.ndarray):
            digest.update(f"{value.dtype.str}{value.shape}".encode())
            digest.update(np.ascontiguousarray(value).data if value.size else b"")
        else:
            digest.update(repr(value).encode())
    return digest.hexdigest()


def raise_file_limit() -> None:
    """Raises this process's limit of open files to the most that it may give itself."""
    if resource is None:
        return
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # macOS has a lower limit that it does not name
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def file_limit() -> int:
    """The most files that this process may have open."""
    if resource is None:
        return NO_LIMIT
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return NO_LIMIT if limit == resource.RLIM_INFINITY else min(limit, NO_LIMIT)
