"""The outer step of a module holds three module sizes and a little, whatever the fan-in.

Measured as the operating system counts it (the peak of the resident set, mapped files included), on
the executor's own function, in a process of its own that has compiled a tiny step and nothing else.
glibc is told to give freed memory back, since what is measured is what we hold on to: left to
itself it keeps holes. One leaf is the whole module, the hardest case: what is done a leaf at a time
holds it once more.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dipaco.outer.config import OuterSettings
from dipaco.outer.step import first_outer_state
from dipaco.store.objects import Objects
from dipaco.store.tensors import save_state, save_tree

MODULE_BYTES = 32 << 20

MEASURE = """
import json, pathlib, sys, types
from dipaco.control.facts.facts import StoredModule
from dipaco.control.planning.tasks import Contribution, Claim, Task
from dipaco.outer.compress import codec_of
from dipaco.outer.config import OuterSettings
from dipaco.receipt import Receipt
from dipaco.runs.run import ShardIndex
from dipaco.store.objects import Objects
from dipaco.topology import Level, ModuleId, Topology
from dipaco.workers.tasks.outer import step_module


def step(earlier, before, state, messages, fan_in):
    objects = Objects(pathlib.Path(sys.argv[1]))
    shards = ShardIndex([], [1] * fan_in)
    contributions = [
        Contribution(arm="modular", path=path, module=ModuleId("all", 0), phase=1,
                base_digest=before[1], message=Receipt(*messages[path % len(messages)]))
        for path in range(fan_in)
    ]
    facts = types.SimpleNamespace(
        module=lambda arm, module, phase: StoredModule(
            Receipt(*(before if phase else earlier)), Receipt(*state)
        ),
        contributions=lambda *key: contributions,
    )
    config = types.SimpleNamespace(outer=OuterSettings())
    paths = lambda module, phase: range(fan_in)
    arm = types.SimpleNamespace(
        contributors=paths, has_quorum=False
    )
    run = types.SimpleNamespace(
        objects=objects,
        ledger=types.SimpleNamespace(facts=facts),
        config=config,
        plan=types.SimpleNamespace(arm=lambda name: arm),
        routing_of=lambda arm, phase: None,
        shards_of=lambda routing: shards,
        counts_through=lambda arm, module, phase: None,
        rule=lambda kind: None,
    )
    step_module(run, Claim(Task("outer", "modular", "all/0000", 1), 1, 1, "test"))


def resident(field):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


tiny, large = json.loads(sys.argv[2])
step(**tiny)
pathlib.Path("/proc/self/clear_refs").write_text("5")  # resets the peak
idle = resident("VmRSS")
step(**large)
print(resident("VmHWM") - idle)
"""


def stored_module(objects: Objects, num_bytes: int) -> dict:
    """A module of one leaf before and after a step, and two contributions to the next."""

    def module(seed):
        return {
            "head": {"w": np.random.default_rng(seed).standard_normal(num_bytes // 4, np.float32)}
        }

    return {
        "earlier": save_tree(objects, "modules", module(3)),
        "before": save_tree(objects, "modules", module(0)),
        "state": save_state(objects, first_outer_state(OuterSettings(), module(0))),
        "messages": [save_tree(objects, "messages", module(seed)) for seed in (1, 2)],
    }


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="only Linux can reset the peak"
)
@pytest.mark.parametrize("fan_in", [8, pytest.param(64, marks=pytest.mark.slow)])
def test_the_outer_step_holds_three_module_sizes_whatever_the_fan_in(tmp_path, fan_in):
    objects = Objects(tmp_path)
    tiny = stored_module(objects, 1024) | {"fan_in": 2}
    large = stored_module(objects, MODULE_BYTES) | {"fan_in": fan_in}
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path), json.dumps([tiny, large])],
        capture_output=True,
        text=True,
        env=os.environ | {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    held = int(done.stdout) / MODULE_BYTES
    print(f"{held:.2f} module sizes at fan-in {fan_in}")
    # Before, mean and momentum; what Python and the compiler take besides.
    assert held < 3.25
