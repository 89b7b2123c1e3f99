"""How fast modules step: an `outer` task on modules of a 150 M path, against reading its files.

    python tools/bench_outer.py                       # root: 115 MB, 256 contributions, warm
    python tools/bench_outer.py --module half         # 350 MB
    python tools/bench_outer.py --cold --gigabytes 4  # the page cache is dropped before each

One pair is one `outer` task as the executor does it (reading with digests, mean, Nesterov step, new
module and state written, flushed and digested) and, before and after it in turn, the reading of
its contributions in the two ways there are: as fast as bytes come (`read`: into one small buffer,
nothing kept), and with the digest that every reader must check (`checked`: `Objects.file`). All in
bytes of contributions per second; the ratios are medians over the pairs, with the interval that
holds the median nineteen times in twenty.

Contributions beyond `--gigabytes` are the first ones again, so that 256 cost the time of 256
and not 40 GB of disk; `--cold` takes each file once, since the second reading would not be cold.
Memory is the peak of the resident set during a task, mapped files included, in module sizes; glibc
gives freed memory back at once, since what is measured is what is held.
"""

import argparse
import ctypes
import functools
import json
import os
import shutil
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from support.paired_ratio import median_and_interval
from support.scratch import scratch

from dipaco.control.facts import StoredModule
from dipaco.control.tasks import Claim, Contribution, Task
from dipaco.outer.config import OuterSettings
from dipaco.outer.step import fresh
from dipaco.receipt import Receipt
from dipaco.store.objects import Objects
from dipaco.store.tensors import save_state, save_tree
from dipaco.topology import ModuleId
from dipaco.workers.tasks.outer import step_module

WIDTH, HIDDEN, VOCABULARY = 896, 2304, 32_000  # the paper's path of 150 M parameters
BLOCK = {
    "attention": dict.fromkeys(("query", "key", "value", "output"), (WIDTH, 1024)),
    "feed_forward": dict.fromkeys(("gate", "up", "down"), (WIDTH, HIDDEN)),
}
MODULES = {  # of `configs/paper_16x16.py`, `half` of `paper_8x8.py`; norms left out
    "root": ({"head": {"kernel": (WIDTH, VOCABULARY)}}, 256),
    "late": ({f"block_{i:02d}": BLOCK for i in range(7, 11)}, 16),
    "half": ({f"block_{i:02d}": BLOCK for i in range(6)} | {"embed": (VOCABULARY, WIDTH)}, 8),
}
KEPT_FREE = 2 << 30  # bytes of disk


class Stored(NamedTuple):
    """What lies on disk for one module."""

    before: Receipt
    state: Receipt
    messages: list[Receipt]


def store(objects: Objects, kind: str, num_bytes: int, most: int) -> Stored:
    """A module that has stepped before, and as many contributions as `num_bytes` hold."""
    shapes, _ = MODULES[kind]
    rng = np.random.default_rng(0)
    module = _arrays(shapes, lambda shape: rng.standard_normal(shape, np.float32))
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(module))
    count = max(2, min(most, (num_bytes - 2 * size) // size))
    return Stored(
        save_tree(objects, "modules", module),
        save_state(objects, fresh(OuterSettings(), module)),
        [
            save_tree(objects, "messages", _arrays_of(module, np.float32(1e-3 * (1 + number))))
            for number in range(count)
        ],
    )


def _arrays(shapes, make):
    return {
        name: _arrays(below, make) if isinstance(below, dict) else make(below)
        for name, below in shapes.items()
    }


def _arrays_of(module, factor):
    return jax.tree.map(lambda leaf: leaf * factor, module)


def task(objects: Objects, stored: Stored, messages: list[Receipt]) -> Callable[[], object]:
    """The executor's own function, on a run of which it sees what it needs."""
    module = ModuleId("all", 0)
    contributions = [
        Contribution(
            arm="modular",
            path=path,
            module=module,
            phase=1,
            base_digest=stored.before.digest,
            message=message,
        )
        for path, message in enumerate(messages)
    ]
    facts = types.SimpleNamespace(
        module=lambda *key: StoredModule(stored.before, stored.state),
        contributions=lambda *key: contributions,
    )
    arm = types.SimpleNamespace(
        paths_through=lambda module, phase: range(len(messages)), has_quorum=False
    )
    run = types.SimpleNamespace(
        objects=objects,
        plan=types.SimpleNamespace(arm=lambda name: arm),
        ledger=types.SimpleNamespace(facts=facts),
        config=types.SimpleNamespace(outer=OuterSettings()),
        routing_of=lambda arm, phase: None,
        shards_of=lambda routing: types.SimpleNamespace(documents=[1] * len(messages)),
        counts_through=lambda *key: None,
        rule=lambda kind: None,
    )
    claim = Claim(Task("outer", "modular", str(module), 1), 1, 1, "bench")
    return functools.partial(step_module, run, claim)  # ty: ignore[invalid-argument-type]


def read(objects: Objects, messages: list[Receipt]) -> None:
    """Every byte, into one small buffer."""
    buffer = bytearray(1 << 18)
    for message in messages:
        with (objects.root / message.name).open("rb", buffering=0) as stream:
            while stream.readinto(buffer):
                pass


def checked(objects: Objects, messages: list[Receipt]) -> None:
    """Every byte, and the digest."""
    for message in messages:
        objects.file(message)


def drop_from_cache(objects: Objects, receipts: list[Receipt]) -> None:
    for receipt in receipts:
        descriptor = os.open(objects.root / receipt.name, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def peak_of(work: Callable[[], object]) -> int:
    """Bytes by which the resident set grows at most during `work`."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again
    idle = resident("VmRSS")
    work()
    return resident("VmHWM") - idle


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--module", choices=MODULES, default="root", help="of the path (root)")
    parser.add_argument("--fan-in", type=int, default=256, help="contributions (256)")
    parser.add_argument("--gigabytes", type=float, default=8.0, help="of files at most (8)")
    parser.add_argument("--pairs", type=int, default=20, help="(20)")
    parser.add_argument("--cold", action="store_true", help="drop the page cache before each")
    parser.add_argument("--folder", help="where the files go; a temporary one")
    arguments = parser.parse_args()

    # glibc's M_MMAP_THRESHOLD: from this size on, what is freed goes back at once.
    ctypes.CDLL(None).mallopt(-3, 1 << 20)
    with scratch(arguments.folder, "outer-") as folder:
        free = shutil.disk_usage(folder).free - KEPT_FREE
        wanted = int(arguments.gigabytes * 1e9)
        if free < wanted:
            print(f"{free / 1e9:.1f} GB of disk are free: taking that, not {wanted / 1e9:.1f}")
        bench(Objects(folder), arguments, min(free, wanted))


def bench(objects: Objects, arguments: argparse.Namespace, num_bytes: int) -> None:
    stored = store(objects, arguments.module, num_bytes, arguments.fan_in)
    distinct, size = len(stored.messages), stored.before.num_bytes
    fan_in = distinct if arguments.cold else arguments.fan_in
    messages = [stored.messages[i % distinct] for i in range(fan_in)]
    where = "cold" if arguments.cold else "in the page cache"
    print(
        f"{arguments.module}: {size / 1e6:.0f} MB, {fan_in} contributions from {distinct} files of "
        f"{distinct * size / 1e9:.1f} GB in all, {where}",
        flush=True,
    )
    # Reading is a rate: an eighth of a warm task's contributions tells it.
    sample = messages if arguments.cold else messages[: max(1, fan_in // 8)]
    ways = {
        "outer": (task(objects, stored, messages), fan_in),
        "read": (functools.partial(read, objects, sample), len(sample)),
        "checked": (functools.partial(checked, objects, sample), len(sample)),
    }
    task(objects, stored, messages[:1])()  # compiles
    peak = peak_of(task(objects, stored, messages[: min(16, fan_in)])) / size

    rates: dict[str, list[float]] = {way: [] for way in ways}
    for pair in range(arguments.pairs):
        order = list(ways) if pair % 2 else list(reversed(ways))
        for way in order:
            work, count = ways[way]
            if arguments.cold:
                drop_from_cache(objects, [stored.before, stored.state, *stored.messages])
            started = time.perf_counter()
            work()
            rates[way].append(count * size / (time.perf_counter() - started))
        if sys.stderr.isatty():
            print(f"\r{pair + 1} of {arguments.pairs} pairs", end="", file=sys.stderr)

    print(f"{'':10} {'GB/s':>6}")
    for way, seen in rates.items():
        print(f"{way:10} {np.median(seen) / 1e9:6.2f}")
    result: dict[str, object] = {}
    for way in ("read", "checked"):
        ratios = np.divide(rates["outer"], rates[way])
        middle, low, high = median_and_interval(ratios.tolist())
        print(f"outer / {way:8} {middle:.2f}   [{low:.2f}, {high:.2f}]   {len(ratios)} pairs")
        result["vs_reading" if way == "read" else "vs_checked_reading"] = round(middle, 3)
    print(f"peak memory {peak:.2f} module sizes")
    result |= {
        "peak_module_sizes": round(peak, 2),
        "fan_in": fan_in,
        "module_megabytes": round(size / 1e6),
        "files_gigabytes": round(distinct * size / 1e9, 1),
        "cold": arguments.cold,
        "pairs": arguments.pairs,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
