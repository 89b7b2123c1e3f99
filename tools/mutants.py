"""Breaks guarantees of the runtime one by one, and says whether the tests notice.

    python tools/mutants.py                          all of them: about half an hour
    python tools/mutants.py --only no-backups leases-never-end
    python tools/mutants.py --list

Each mutant (`mutations/`) is a change of a line or two: leases that never end, a fencing token that
is ignored, bytes that are not checked, a sum in another order. It is made in a copy of the working
tree, where the tests that ought to notice are run. A mutant is *killed* when a test fails, or is
still at work after `--seconds`. A mutant that lets all pass has *survived*, and a guarantee has no
test.

First the same tests are run on the unchanged tree, where they must pass, none skipped, or a broken
test would kill everything. A mutant whose old text is no longer in its file, once, and one whose
tests cannot be collected, is an error and not a kill. The last line is one JSON object. Exit code 1
means that a mutant survived or could not be tried.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from mutations.mutant import Mutant
from mutations.of_bytes import MUTANTS as OF_BYTES
from mutations.of_claims import MUTANTS as OF_CLAIMS
from mutations.of_databases import MUTANTS as OF_DATABASES
from mutations.of_looks import MUTANTS as OF_LOOKS
from mutations.of_steps import MUTANTS as OF_STEPS
from mutations.of_storms import MUTANTS as OF_STORMS
from mutations.of_swarms import MUTANTS as OF_SWARMS
from support.command_line import parser_of
from support.scratch import scratch

MUTANTS = (
    *OF_CLAIMS,
    *OF_LOOKS,
    *OF_DATABASES,
    *OF_BYTES,
    *OF_STEPS,
    *OF_STORMS,
    *OF_SWARMS,
)
HOME = Path(__file__).parents[1]
PASSED, FAILED = 0, 1  # Exit codes of pytest. After any other, nothing was tested.
SECONDS = 600.0
PYTEST = ("-n", "0", "-q", "-x", "-p", "no:cacheprovider")


class Tested(NamedTuple):
    """The outcome of pytest on one tree."""

    code: int | None  # None: it was not done in time
    said: str
    seconds: float

    @property
    def failed(self) -> str:
        """The test that failed first."""
        found = re.search(r"^(?:FAILED|ERROR) (\S+)", self.said, re.MULTILINE)
        return found[1] if found else ""

    @property
    def tail(self) -> str:
        return "\n".join(self.said.splitlines()[-15:])


def main() -> int:
    options = parse()
    mutants = [each for each in MUTANTS if options.only is None or each.name in options.only]
    if options.list:
        for each in mutants:
            print(f"{each.name:36} {each.breaks}")
        return 0
    if problems := [problem for each in mutants if (problem := each.problem(HOME))]:
        print("\n".join(problems), file=sys.stderr)
        return 1
    with scratch(options.folder, "mutants-") as folder:
        answer = try_all(mutants, HOME, folder, options.jobs, options.seconds)
    print(json.dumps(answer))
    return 1 if answer["survived"] or answer["errors"] else 0


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these mutants")
    parser.add_argument("--list", action="store_true", help="names, and what each breaks; no tests")
    parser.add_argument("--jobs", type=int, default=1, help="mutants that are tried at once")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="for the tests of one mutant; then it counts"
        " as killed",
    )  # fmt: skip
    parser.add_argument("--folder", help="where the copies are put, and removed afterwards")
    options = parser.parse_args()
    names = {each.name for each in MUTANTS}
    if unknown := sorted(set(options.only or ()) - names):
        parser.error(f"no such mutants: {', '.join(unknown)}; --list names all")
    return options


def try_all(
    mutants: Sequence[Mutant], root: Path, folder: Path, jobs: int, seconds: float
) -> dict[str, object]:
    """Runs the tests on the unchanged tree, then on each mutant, with a line for each.

    Returns:
      Number of killed mutants, names of survivors, and reasons by name for mutants that could not
      be tried.
    """
    copy_tree(root, folder / "as-it-is")
    tests = tuple(dict.fromkeys(test for each in mutants for test in each.tests))
    unchanged = run_tests(folder / "as-it-is", tests, seconds * len(mutants))
    if unchanged.code != PASSED or " skipped" in unchanged.said:
        first = f" (first {unchanged.failed})" if unchanged.failed else ""
        reason = f"the tests do not pass on the tree as it is{first}:\n{unchanged.tail}"
        raise SystemExit(reason)
    print(f"as it is: passed in {unchanged.seconds:.0f} s", flush=True)
    killed, survived, errors = 0, [], {}
    with ThreadPoolExecutor(jobs) as threads:
        numbered = list(enumerate(mutants, 1))
        outcomes = threads.map(lambda each: try_one(each[1], root, folder, seconds), numbered)
        for (number, mutant), tested in zip(numbered, outcomes, strict=True):
            if tested.code == PASSED:
                survived.append(mutant.name)
                verdict = f"SURVIVED: {mutant.breaks}"
            elif tested.code in (FAILED, None):
                killed += 1
                verdict = f"killed by {tested.failed}" if tested.code else "killed: out of time"
            else:
                errors[mutant.name] = tested.tail
                verdict = f"ERROR: pytest ended with {tested.code}\n{tested.tail}"
            at = f"{number}/{len(mutants)}"
            print(f"{at:>6} {tested.seconds:4.0f} s  {mutant.name}: {verdict}", flush=True)
    return {"killed": killed, "survived": survived, "errors": errors}


def try_one(mutant: Mutant, root: Path, folder: Path, seconds: float) -> Tested:
    """Its tests, on a copy of the tree with the mutant in it."""
    copy = folder / mutant.name
    copy_tree(root, copy)
    mutant.apply(copy)
    try:
        return run_tests(copy, mutant.tests, seconds)
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def copy_tree(root: Path, copy: Path) -> None:
    """Copies the files that git knows or does not ignore, or all files without git."""
    names = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(names, capture_output=True, text=True, check=False)
    if listed.returncode:
        shutil.copytree(root, copy)
        return
    for name in filter(None, listed.stdout.split("\0")):
        if (root / name).is_file():  # it may have been deleted and not yet committed
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / name, copy / name)


def run_tests(tree: Path, tests: Sequence[str], seconds: float) -> Tested:
    """The tests in a tree, in a process group that ends with them. A skip is a failure."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree),
        "DIPACO_EVERYTHING_INSTALLED": "1",
        "DIPACO_TESTS_COMPILED": str(tree.parent / "compiled"),
    }
    command = [sys.executable, "-m", "pytest", *PYTEST, "--timeout", str(seconds), *tests]
    began = time.monotonic()
    with (tree / "said").open("w+") as said:
        process = subprocess.Popen(
            command, cwd=tree, env=environment, stdin=subprocess.DEVNULL, stdout=said,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        code: int | None = None
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass
        finally:
            end_group(process)
        said.seek(0)
        return Tested(code, said.read(), time.monotonic() - began)


def end_group(process: subprocess.Popen) -> None:
    """Nothing that the tests started is left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


if __name__ == "__main__":
    sys.exit(main())
