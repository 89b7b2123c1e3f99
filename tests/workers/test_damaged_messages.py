"""Ten thousand damaged messages of `int2` as an outer task reads them: each is refused with its
reason, or means what was sent; none is added as something else, none takes much memory.

The receipt is that of the damaged bytes, as if a worker had sent them: otherwise the digest says at
once that they are not what was sent (`tests/store`).
"""

import random
import tracemalloc

import numpy as np
import pytest
from safetensors.numpy import save

from dipaco import trees
from dipaco.outer.codecs.int2 import CODEC
from dipaco.outer.errors import BadEncoding
from dipaco.store.errors import ObjectDamaged
from dipaco.store.objects import Objects
from dipaco.store.tensors import map_tree


def module(seed):
    """A gradient of a small module; every leaf is cut in another way."""
    normal = np.random.default_rng(seed).standard_normal
    return {
        "embed": {"table": normal((48, 32), np.float32)},
        "block_00": {"w": normal((40, 130), np.float32), "norm": normal(32, np.float32)},
        "head": {"kernel": normal((150, 40), np.float32)},
    }


LIKE = trees.outline(module(0))
MESSAGES = [CODEC.encode(module(seed)) for seed in range(8)]


def flip_bits(content, dice):
    for _ in range(dice.choice([1, 1, 2, 30])):
        content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)


def flip_in_header(content, dice):
    content[dice.randrange(int.from_bytes(content[:8], "little") + 8)] ^= 1 << dice.randrange(8)


def change_digit(content, dice):
    """Of a shape or an offset: a header that can be read and says something else."""
    end = int.from_bytes(content[:8], "little") + 8
    digits = [i for i in range(8, end) if chr(content[i]).isdigit()]
    content[dice.choice(digits)] = ord(dice.choice("0123456789-e."))


def cut_off(content, dice):
    del content[dice.randrange(len(content)) :]


def leave_out(content, dice):
    start = dice.randrange(len(content))
    del content[start : start + dice.randrange(1, 40)]


def put_in(content, dice):
    start = dice.randrange(len(content))
    content[start:start] = dice.randbytes(dice.randrange(1, 40))


def fill(content, dice):
    start = dice.randrange(len(content))
    length = min(dice.randrange(1, 200), len(content) - start)
    content[start : start + length] = bytes([dice.choice([0, 255])]) * length


def mix(content, dice):
    """The beginning of one message and the end of another, as large."""
    other = serialised(dice.randrange(len(MESSAGES)))
    start = dice.randrange(int.from_bytes(content[:8], "little") + 9, len(content))
    content[start:] = other[start:]


DAMAGES = (flip_bits, flip_in_header, change_digit, cut_off, leave_out, put_in, fill, mix)


def serialised(number):
    return bytearray(save({n: np.ascontiguousarray(v) for n, v in trees.flatten(MESSAGES[number])}))


def received(objects, content):
    """The gradient in a contribution's bytes, as an outer task takes it."""
    receipt = objects.write("messages", "safetensors", lambda file: file.write_bytes(content))
    try:
        gradient = CODEC.decode(map_tree(objects, receipt), LIKE)
    finally:
        objects.delete(receipt.name)
    difference = trees.difference(LIKE, gradient)
    if difference is not None:
        raise BadEncoding(problem=difference)
    return gradient


def outcome_and_bytes(objects, content):
    """The gradient or why it is refused, and the most memory that was taken meanwhile."""
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    try:
        outcome = received(objects, content)
    except (ObjectDamaged, BadEncoding) as error:  # any other is a crash
        outcome = error
    return outcome, tracemalloc.get_traced_memory()[1] - before


@pytest.mark.parametrize("count", [400, pytest.param(10_000, marks=pytest.mark.slow)])
def test_a_damaged_message_is_refused_or_means_what_was_sent(tmp_path, count):
    objects, sent = Objects(tmp_path), [trees.digest(CODEC.decode(m, LIKE)) for m in MESSAGES]
    reasons, same, most, most_allowed = set(), [], 0, 20 * trees.num_bytes(module(0))
    tracemalloc.start()
    for seed in range(count):
        dice = random.Random(seed)
        damage, number = DAMAGES[seed % len(DAMAGES)], dice.randrange(len(MESSAGES))
        content = serialised(number)
        damage(content, dice)
        outcome, taken = outcome_and_bytes(objects, content)
        if taken >= most_allowed:  # by other threads of this process: a message does it again
            outcome, taken = outcome_and_bytes(objects, content)
        most = max(most, taken)
        if isinstance(outcome, Exception):
            reasons.add(str(outcome).rpartition(": ")[2])
            continue
        assert trees.digest(outcome) == sent[number], f"{damage.__name__} of seed {seed}"
        same.append(damage.__name__)
    tracemalloc.stop()
    assert most < most_allowed
    # A digit is replaced by itself, zeros by zeros, a message by its own end.
    assert len(same) < count / 10, same
    assert len(reasons) > 10
    assert any("checksum is not that of its values" in reason for reason in reasons)
