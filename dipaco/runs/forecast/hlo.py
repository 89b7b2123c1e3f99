"""Bytes that a compiled program moves, by the text that XLA prints of it.

XLA's own cost analysis counts the body of a loop once, and what lies on the chip as memory. Here an
operation moves its operands and results that are in the device's memory, tiles filled up, and a
loop moves them as often as it turns. A kernel is taken to read and write each array once.
"""

import dataclasses
import math
import re

SHAPE = re.compile(r"\b([a-z]+\d*\w*)\[([\d,]*)\](?:\{([\d,]*)(?::([^{}]*))?\})?")
LINE = re.compile(r"^\s+(ROOT )?%([\w.-]+) = (.*?) ([a-z][a-z0-9-]*)\((.*)$")
HEAD = re.compile(r"^(ENTRY )?%([\w.-]+) \(")
CALLED = re.compile(r"\b(calls|body|condition|to_apply)=%([\w.-]+)")
ON_CHIP = re.compile(r"S\([1-9]")
KERNEL = 'custom_call_target="tpu_custom_call"'
MOVES_NOTHING = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all")
SLICES = ("dynamic-slice", "gather", "slice")
LARGEST_LOOP = 1 << 20  # A larger constant in a loop's condition is no count of its turns.


@dataclasses.dataclass(frozen=True)
class Operation:
    """A line of a computation."""

    kind: str
    results: tuple[int, ...]  # bytes of each, tiles filled up
    in_memory: tuple[int, ...]  # the same, but 0 for one that stays on the chip
    operands: tuple[str, ...]
    called: dict[str, str]  # `calls`, `body`, `condition` -> computation
    text: str
    is_root: bool


Computation = dict[str, Operation]


def moved_bytes(hlo: str) -> int:
    """Bytes that one device moves to and from its memory.

    Args:
      hlo: `compiled.as_text()`.
    """
    computations, entry = _parsed(hlo)
    return _of_computation(computations, entry)


def _parsed(hlo: str) -> tuple[dict[str, Computation], str]:
    computations: dict[str, Computation] = {}
    name = entry = ""
    for line in hlo.splitlines():
        if head := HEAD.match(line):
            name = head[2]
            computations[name] = {}
            entry = name if head[1] else entry
        elif found := LINE.match(line):
            root, result, shape, kind, rest = found.groups()
            computations[name][result] = Operation(
                kind=kind,
                results=tuple(_bytes(*each.groups()) for each in SHAPE.finditer(shape)),
                in_memory=tuple(
                    0 if ON_CHIP.search(each[4] or "") else _bytes(*each.groups())
                    for each in SHAPE.finditer(shape)
                ),
                operands=tuple(re.findall(r"%([\w.-]+)", rest.partition(")")[0])),
                called=dict(CALLED.findall(rest)),
                text=rest,
                is_root=root is not None,
            )
    return computations, entry


def _bytes(dtype: str, sizes: str, order: str | None, layout: str | None) -> int:
    shape = [int(size) for size in sizes.split(",") if size]
    tile = re.search(r"T\(([\d,]+)\)", layout or "")
    if tile and order:
        widths = reversed(tile[1].split(","))
        for axis, width in zip(order.split(","), widths, strict=False):
            shape[int(axis)] = -(-shape[int(axis)] // int(width)) * int(width)
    bits = re.search(r"\d+", dtype)
    return math.prod(shape) * (int(bits[0]) if bits else 8) // 8


def _of_computation(computations: dict[str, Computation], name: str) -> int:
    here = computations[name]
    return sum(_of_operation(computations, here, each) for each in here.values())


def _of_operation(computations: dict[str, Computation], here: Computation, op: Operation) -> int:
    if op.kind in MOVES_NOTHING or op.kind.endswith("-done"):
        return 0
    if op.kind == "while":
        turns = _turns(computations, op.called["condition"])
        return turns * _of_computation(computations, op.called["body"])
    if op.kind == "call":
        return _of_computation(computations, op.called["to_apply"])
    if op.kind == "custom-call" and KERNEL not in op.text:
        return 0  # an annotation of the compiler
    if op.kind == "copy-start":
        return sum(op.in_memory[:2])  # to and from
    if op.kind == "slice-start":
        return (op.results[1] if op.in_memory[0] else 0) + op.in_memory[1]
    if op.kind in SLICES:
        return 2 * sum(op.in_memory)
    if op.kind == "dynamic-update-slice":
        return 2 * sum(here[op.operands[1]].in_memory)
    operands = [sum(here[name].in_memory) for name in op.operands if name in here]
    written = sum(op.in_memory)
    if op.kind == "fusion":
        inside = op.called["calls"]
        operands = [_read(computations, inside, n, whole) for n, whole in enumerate(operands)]
        written = min(written, _written(computations, inside))
    return sum(operands) + written


def _turns(computations: dict[str, Computation], condition: str) -> int:
    """The constant that a loop counts up to."""
    constants = (
        int(each.text.partition(")")[0])
        for each in computations[condition].values()
        if each.kind == "constant" and each.text.partition(")")[0].isdecimal()
    )
    return max((each for each in constants if each < LARGEST_LOOP), default=1)


def _read(computations: dict[str, Computation], fusion: str, number: int, whole: int) -> int:
    """Bytes that a fusion reads of an operand: of a sliced one the slices, of an updated one none,
    also where a fusion inside it slices or updates.
    """
    inside, is_number = computations[fusion], f"{number})"
    name = next(
        name
        for name, each in inside.items()
        if each.kind == "parameter" and each.text.startswith(is_number)
    )
    read = 0
    for user, place in (uses := _uses(inside, name)):
        if user.kind in SLICES:
            read += sum(user.results)
        elif user.kind == "fusion":
            read += _read(computations, user.called["calls"], place, whole)
        elif user.kind != "dynamic-update-slice" or place:
            return whole
    return min(whole, read) if uses else whole


def _uses(inside: Computation, name: str) -> list[tuple[Operation, int]]:
    """Operations that take an array, and as which of their operands."""
    found = []
    for result, each in inside.items():
        for place, operand in enumerate(each.operands):
            if operand == name:
                found += _uses(inside, result) if each.kind == "bitcast" else [(each, place)]
    return found


def _written(computations: dict[str, Computation], fusion: str) -> int:
    """Bytes that a fusion writes if all of it is in memory: of an updated array the update."""
    inside = computations[fusion]

    def of(op: Operation) -> int:
        if op.kind == "dynamic-update-slice":
            return sum(inside[op.operands[1]].results)
        if op.kind in ("bitcast", "tuple"):
            return sum(of(inside[name]) for name in op.operands)
        if op.kind == "fusion":
            return _written(computations, op.called["calls"])
        return sum(op.results)

    return of(next(op for op in inside.values() if op.is_root))
