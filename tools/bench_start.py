"""How long a worker takes from being started to its first step, as the person before it sees it.

    python tools/bench_start.py configs/quickstart.py

Begins a run in a temporary folder and kills it when the bar shows a first loss, then starts it
again and again: what is prepared is prepared, and what is compiled lies in the cache (a new one, in
the same folder). The first time counts the preparing of the corpus as well, and is only printed.
The last line is JSON: the median of the later starts, in seconds.
"""

import argparse
import json
import os
import pty
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HOME = Path(__file__).parents[1]
DEADLINE_SECONDS = 600.0


def seconds_to_first_loss(command: list[str], cache: Path) -> float:
    """Starts the command under a terminal of our own; kills it when its bar shows a loss."""
    here, there = pty.openpty()
    environment = os.environ | {
        "DIPACO_CACHE": str(cache),
        "PYTHONPATH": str(HOME),
        "TERM": "xterm",
        "COLUMNS": "200",
    }
    began, shown = time.monotonic(), b""
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=there, stdin=subprocess.DEVNULL, env=environment
    )
    os.close(there)
    try:
        while not re.search(rb"loss \d", shown):
            assert time.monotonic() - began < DEADLINE_SECONDS, shown
            try:
                shown += os.read(here, 65536)
            except OSError:  # it ended
                raise SystemExit(shown.decode(errors="replace")) from None
        return time.monotonic() - began
    finally:
        process.kill()
        process.wait()
        os.close(here)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path, help="a config that `dipaco train` takes")
    parser.add_argument("--starts", type=int, default=7, help="after the first (7)")
    arguments, more = parser.parse_known_args()

    with tempfile.TemporaryDirectory() as folder:
        cli = [sys.executable, "-m", "dipaco.cli.main", "train", str(arguments.config)]
        command = [*cli, "--run", f"{folder}/run", *more]
        first = seconds_to_first_loss(command, Path(folder) / "cache")
        print(f"first start {first:.1f} s, corpus included", flush=True)
        later = [
            seconds_to_first_loss(command, Path(folder) / "cache") for _ in range(arguments.starts)
        ]
    print("later starts", *(f"{seconds:.2f}" for seconds in later))
    print(json.dumps({"start_seconds": round(statistics.median(later), 2)}))


if __name__ == "__main__":
    main()
