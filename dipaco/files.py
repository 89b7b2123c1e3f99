"""Files that are written whole or not at all, and known by their digest."""

import errno
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import xxhash

from dipaco.errors import DiskFull, NotWritable

BLOCK_BYTES = 1 << 18


def write_whole(file: Path, write: Callable[[BinaryIO], object]) -> None:
    """Writes beside `file`, flushes to disk, then renames: a reader sees all of it or nothing.

    Raises:
      DiskFull, NotWritable: what was there before is whole.
    """
    partial = file.with_name(file.name + ".partial")
    try:
        with partial.open("wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        rename_durably(partial, file)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(file=file) from error
        raise NotWritable(file=file, problem=error.strerror or error) from error


def rename_durably(partial: Path, file: Path) -> None:
    """Gives a flushed file its name, and flushes the folder that holds the name."""
    partial.replace(file)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_arrays(file: Path, arrays: Mapping[str, Any]) -> None:
    """Writes named arrays as one .npz, whole or not at all."""
    write_whole(file, lambda stream: np.savez(stream, **arrays))


def file_digest(file: Path) -> str:
    """xxh3 (128 bits, hexadecimal) of a file's bytes, read block by block."""
    digest = xxhash.xxh3_128()
    # One buffer, which stays in the cache: 6.0 GB/s, against 5.0 with a new megabyte every time.
    block = memoryview(bytearray(BLOCK_BYTES))
    with file.open("rb", buffering=0) as stream:
        while num_bytes := stream.readinto(block):
            digest.update(block[:num_bytes])
    return digest.hexdigest()


def digest_of(*values: np.ndarray | str | int) -> str:
    """xxh3 (128 bits) of arrays, with type and shape, and of plain values, in this order."""
    digest = xxhash.xxh3_128()
    for value in values:
        if isinstance(value, np.ndarray):
            digest.update(f"{value.dtype.str}{value.shape}".encode())
            digest.update(np.ascontiguousarray(value).data if value.size else b"")
        else:
            digest.update(repr(value).encode())
    return digest.hexdigest()


def mix(numbers: np.ndarray, seed: int) -> np.ndarray:
    """[N] integers -> [N] uint64 that look random: splitmix64, the same on every machine.

    Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014), and
    Vigna's constants. Not NumPy's generators: their streams may change between versions, and plans
    must not.
    """
    start = (seed * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    mixed = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(start)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
