"""A volunteer's two commands on a machine that has Python and nothing else: a virtual environment
is made, dipaco is installed with the extra `volunteer`, and it joins a toy swarm over TLS.

    python tools/volunteer_install.py --out install.json

Prints the megabytes that the installation takes, the largest packages, and what the volunteer said.
Fails if PyTorch, hivemind or what only trains and draws was installed, if it takes more than
`--most-megabytes`, or if the volunteer computes nothing. It asks the package index, or what
`--pip-option` says.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HOME = Path(__file__).resolve().parents[1]
MOST_MEGABYTES = 850.0
UNWANTED = ("torch", "hivemind", "pyarrow", "matplotlib", "grain", "array-record", "tokenizers")
SETTINGS = ("base.steps=0", "phases=2", "inner.steps=4", "inner.batch_size=8")
SWARM_SECONDS = 300.0
MEASURE = """
import importlib.metadata as metadata, json
sizes = {}
for one in metadata.distributions():
    files = {file.locate() for file in one.files or ()}
    sizes[one.name] = sum(f.stat().st_blocks * 512 for f in files if f.exists()) / 1e6
print(json.dumps(sizes))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON with what was measured")
    parser.add_argument("--most-megabytes", type=float, default=MOST_MEGABYTES, metavar="N")
    parser.add_argument(
        "--pip-option", action="append", default=[], metavar="OPTION", help="for `pip install`"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        installed = install(folder, options.pip_option)
        said = join(folder, Path(installed["python"]))
    samples = re.search(r"([\d,]+) samples, .* sent", said)
    computed = int(samples[1].replace(",", "")) if samples else 0
    report = {
        "megabytes": round(installed["megabytes"]),
        "install_seconds": round(installed["seconds"]),
        "packages": {name: round(size, 1) for name, size in installed["packages"].items()},
        "unwanted": sorted(set(UNWANTED) & installed["packages"].keys()),
        "samples": computed,
        "said": said.splitlines(),
    }
    if options.out is not None:
        options.out.write_text(json.dumps(report, indent=1) + "\n")
    largest = [*report["packages"].items()][:8]
    print(f"{report['megabytes']} MB in {len(report['packages'])} packages: ", end="")
    print(", ".join(f"{name} {size:.0f}" for name, size in largest))
    print(said)
    if report["unwanted"]:
        raise SystemExit(f"These were installed and are not needed: {report['unwanted']}")
    if report["megabytes"] > options.most_megabytes:
        raise SystemExit(f"It takes more than {options.most_megabytes:.0f} MB.")
    if not computed:
        raise SystemExit("The volunteer computed nothing.")


def install(folder: Path, pip_options: list[str]) -> dict:
    """A virtual environment with the extra `volunteer`, and what it takes on the disk."""
    where = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(where)], check=True)
    python = where / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "-q", *pip_options]
    started = time.monotonic()
    subprocess.run([*pip, f"{HOME}[volunteer]"], check=True, env=_outside())
    seconds = time.monotonic() - started
    sizes = subprocess.run(
        [str(python), "-c", MEASURE], check=True, capture_output=True, text=True, cwd=folder
    )
    packages = sorted(json.loads(sizes.stdout).items(), key=lambda one: -one[1])
    return {
        "python": str(python),
        "seconds": seconds,
        "megabytes": _megabytes(where),
        "packages": dict(packages),
    }


def join(folder: Path, python: Path) -> str:
    """Has that environment join a toy swarm that this one leads; what it said."""
    run, token = folder / "run", folder / "ana.pass"
    here = [sys.executable, "-m", "dipaco.cli.main"]
    words = ["swarm", "start", "toy", "--run", str(run), "--path", "0"]
    words += ["--listen", "tls://127.0.0.1:0"]
    for setting in SETTINGS:
        words += ["--set", setting]
    environment = os.environ | {"DIPACO_CACHE": str(folder / "cache"), "JAX_PLATFORMS": "cpu"}
    log = folder / "backbone.log"
    with log.open("w") as file, contextlib.ExitStack() as stack:
        backbone = subprocess.Popen(
            [*here, *words], stdout=file, stderr=file, cwd=HOME, env=environment
        )
        stack.callback(_end, backbone)
        address = _wait_for(log, r"dipaco swarm join (\S+)", backbone)
        issue = ["swarm", "token", "--run", str(run), "--name", "ana", "--out", str(token)]
        subprocess.run([*here, *issue], check=True, stdout=file, cwd=HOME, env=environment)
        lent = [str(python.parent / "dipaco"), "swarm", "join", address, "--token", str(token)]
        heard = folder / "volunteer.log"
        with heard.open("w") as output:
            volunteer = subprocess.Popen(
                lent, stdout=output, stderr=output, cwd=folder, env=_outside() | _cache(folder)
            )
            stack.callback(_end, volunteer)
            _wait_for(heard, r"step 2\D", volunteer)
            volunteer.send_signal(signal.SIGINT)
            volunteer.wait(timeout=SWARM_SECONDS)
        said = heard.read_text()
        if volunteer.returncode:
            raise SystemExit(f"the volunteer ended with {volunteer.returncode}:\n{said}")
        return said


def _wait_for(log: Path, pattern: str, process: subprocess.Popen) -> str:
    deadline = time.monotonic() + SWARM_SECONDS
    while (found := re.search(pattern, log.read_text())) is None:
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"`{pattern}` was not said:\n{log.read_text()[-3000:]}")
        time.sleep(0.1)
    return found[found.lastindex or 0]


def _end(process: subprocess.Popen) -> None:
    process.terminate()
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _outside() -> dict[str, str]:
    """The environment of a person who has not activated this one."""
    dropped = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")
    return {name: value for name, value in os.environ.items() if name not in dropped}


def _cache(folder: Path) -> dict[str, str]:
    return {"DIPACO_CACHE": str(folder / "cache of the volunteer"), "JAX_PLATFORMS": "cpu"}


def _megabytes(folder: Path) -> float:
    """On the disk, as `du` counts."""
    files = (Path(where) / name for where, _, names in os.walk(folder) for name in names)
    return sum(file.lstat().st_blocks for file in files) * 512 / 1e6


if __name__ == "__main__":
    main()
