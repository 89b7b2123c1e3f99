"""Messages between peers, damaged."""

import copy
import math

import msgspec

VALUES = (
    *(0, -1, 1, 7, 1 << 31, (1 << 63) - 1, (1 << 64) - 1, -(1 << 63)),
    *(0.0, -1.0, 1e308, math.nan, math.inf),
    *("", "root", "../..", "\x00\x1b[2J", "127.0.0.1:1", "a..b:1", "none", "int8"),
    *("x" * 5000, b"", bytes(33), None, True, [], [0, 1], [1 << 40] * 3, {}, {"": 1}),
)


def damaged_fields(body, rng):
    """A body of the same shape with other values, now and then one field more or less."""
    fields = msgspec.to_builtins(body, builtin_types=(bytes,))
    for _ in range(rng.randint(1, 2)):
        inner = list(_within(fields))
        at = rng.choice(inner) if inner and rng.random() < 0.6 else fields
        name = rng.randrange(len(at)) if isinstance(at, list) else rng.choice(list(at) or [""])
        what = rng.random()
        if what < 0.8:
            at[name] = copy.deepcopy(rng.choice(VALUES))
        elif what < 0.9:
            at.pop(name) if at else None
        elif isinstance(at, dict):
            at[f"{name}x"] = copy.deepcopy(rng.choice(VALUES))
    return fields


def _within(value):
    """The bodies and lists in a body that have something in them."""
    for one in value.values() if isinstance(value, dict) else value:
        if isinstance(one, dict | list) and one:
            yield one
            yield from _within(one)


def damaged_bytes(content, rng):
    """Some bytes are others, or missing, or there twice."""
    content = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at, what = rng.randrange(len(content) + 1), rng.random()
        if what < 0.6 and at < len(content):
            content[at] = rng.randrange(256)
        elif what < 0.8:
            del content[at : at + rng.randint(1, 8)]
        else:
            content[at:at] = rng.randbytes(rng.randint(1, 8))
    return bytes(content)


def encoded(fields):
    try:
        return msgspec.msgpack.encode(fields)
    except (msgspec.MsgspecError, OverflowError):
        return b"\xc1"
