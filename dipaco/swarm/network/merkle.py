"""Merkle trees (1979): a digest of bytes, some of which can be shown later without the rest.

Bytes are cut into leaves of `LEAF_BYTES`. A level has the digests of pairs of the level below, and
an odd digest is carried over. A leaf and the digests beside its path give the root again, and no
other leaf does. Leaves and pairs are hashed with different prefixes (RFC 6962, section 2.1).
"""

import hashlib

import msgspec

LEAF_BYTES = 4096
_LEAF, _PAIR = b"\0", b"\1"


class OpenedLeaf(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One leaf, with the digests beside its path to the root."""

    number: int
    content: bytes
    beside: tuple[bytes, ...]


def root_of(content: bytes | bytearray | memoryview) -> bytes:
    """The digest of bytes, 32 bytes."""
    level = _leaves(content)
    while len(level) > 1:
        level = _above(level)
    return level[0]


def open_leaves(content: bytes, numbers: list[int]) -> tuple[OpenedLeaf, ...]:
    """Leaves of `content`, each with the proof that it is in it."""
    levels = [_leaves(content)]
    while len(levels[-1]) > 1:
        levels.append(_above(levels[-1]))
    opened = []
    for number in numbers:
        beside, at = [], number
        for level in levels[:-1]:
            if (at ^ 1) < len(level):
                beside.append(level[at ^ 1])
            at //= 2
        leaf = content[number * LEAF_BYTES : (number + 1) * LEAF_BYTES]
        opened.append(OpenedLeaf(number, bytes(leaf), tuple(beside)))
    return tuple(opened)


def is_in(leaf: OpenedLeaf, root: bytes, num_bytes: int) -> bool:
    """True if a leaf is in the `num_bytes` bytes that have this root."""
    count, at, beside = num_leaves(num_bytes), leaf.number, list(leaf.beside)
    if not 0 <= at < count:
        return False
    found = _hash(_LEAF, leaf.content)
    while count > 1:
        if (at ^ 1) < count:
            if not beside:
                return False
            other = beside.pop(0)
            found = _hash(_PAIR, other + found if at % 2 else found + other)
        at, count = at // 2, -(-count // 2)
    return not beside and found == root


def num_leaves(num_bytes: int) -> int:
    return max(1, -(-num_bytes // LEAF_BYTES))


def _leaves(content: bytes | bytearray | memoryview) -> list[bytes]:
    whole = memoryview(content)
    starts = range(0, max(len(whole), 1), LEAF_BYTES)
    return [_hash(_LEAF, whole[start : start + LEAF_BYTES]) for start in starts]


def _above(level: list[bytes]) -> list[bytes]:
    pairs = [_hash(_PAIR, level[at] + level[at + 1]) for at in range(0, len(level) - 1, 2)]
    return pairs + level[len(pairs) * 2 :]


def _hash(prefix: bytes, content: bytes | memoryview) -> bytes:
    state = hashlib.blake2b(prefix, digest_size=32)
    state.update(content)
    return state.digest()
