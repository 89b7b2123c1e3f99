"""Runs a `dipaco` command line as a slower machine: every block takes at least SECONDS. For
`swarm_storm.py`, whose volunteers share one machine.

    python tools/swarm_slow.py SECONDS FILE swarm join ...

FILE holds its activity (computing, averaging, waiting), when it began and when it last worked, the
seconds that a block really takes, the seconds of all blocks, and their number.

    python tools/swarm_slow.py SECONDS FILE worker ...

Every step of a plain worker takes at least SECONDS. FILE has a line for each: when it began and
when it ended.
"""

import statistics
import sys
import time
from pathlib import Path

from dipaco.cli.main import main
from dipaco.swarm.roles.round_parts import PartSender
from dipaco.swarm.roles.volunteer import Volunteer
from dipaco.swarm.training.compute import Compute


def slow_down(seconds_per_block: float, file: Path) -> None:
    """Wraps a volunteer's computing, since dipaco itself has no such setting."""
    gradient, compute_blocks = Compute.gradient, Volunteer._compute_blocks
    take_part = PartSender._take_part
    began: list[float] = []
    seen: list[float] = []

    def note(doing: str) -> None:
        now = time.time()
        if not began:
            began.append(now)
        usual = statistics.median(seen[-50:]) if seen else seconds_per_block
        temporary = file.with_suffix(".new")
        temporary.write_text(f"{doing}\n{began[0]}\n{now}\n{usual}\n{sum(seen)}\n{len(seen)}\n")
        temporary.replace(file)

    def slow_gradient(self, *of_rows):
        started = time.monotonic()
        found = gradient(self, *of_rows)
        if self._is_warm:
            time.sleep(max(0.0, seconds_per_block - (time.monotonic() - started)))
            seen.append(time.monotonic() - started)
        return found

    async def noted_compute_blocks(self, *arguments):
        note("computing")
        await compute_blocks(self, *arguments)
        note("waiting")

    async def noted_take_part(self, *arguments):
        note("averaging")
        await take_part(self, *arguments)

    setattr(Compute, "gradient", slow_gradient)  # noqa: B010
    setattr(Volunteer, "_compute_blocks", noted_compute_blocks)  # noqa: B010
    setattr(PartSender, "_take_part", noted_take_part)  # noqa: B010


def slow_down_worker(seconds_per_step: float, file: Path) -> None:
    """Wraps the steps that a plain worker takes."""
    from dipaco.workers import runners

    run_phase = runners.run_phase

    def slow_run_phase(state, batches, rates, step, **settings):
        def slow_step(*arguments):
            began = time.time()
            taken = step(*arguments)
            time.sleep(max(0.0, seconds_per_step - (time.time() - began)))
            with file.open("a") as steps:
                steps.write(f"{began} {time.time()}\n")
            return taken

        return run_phase(state, batches, rates, slow_step, **settings)

    setattr(runners, "run_phase", slow_run_phase)  # noqa: B010


if __name__ == "__main__":
    slow = slow_down_worker if sys.argv[3] == "worker" else slow_down
    slow(float(sys.argv[1]), Path(sys.argv[2]))
    sys.exit(main(sys.argv[3:]))
