"""The identity of this program: its version, and a digest of its sources.

Two commits of one version may give other bits, or record facts in another way. So a run is pinned
to the sources of the rooms that make bits and facts, wherever they are installed. Rooms that show,
serve or start things may differ. `0.3.0+3f9a1c2b7d (commit 28b06a0)`: the version, a digest of
those sources, and for people the commit of the checkout, also if a wheel was built in it.
"""

import base64
import contextlib
import functools
import hashlib
import importlib.metadata
import re
import subprocess
import zipfile
from pathlib import Path

import dipaco
from dipaco.errors import RunOfOtherVersion
from dipaco.files import translate_os_errors

HOME = Path(dipaco.__file__).parent
ROOMS_APART = (
    *("cli", "configs", "dashboard", "launch", "library", "observe"),
    *("serving", "sweeps"),
)
NUMBER_FILE = "__init__.py"  # It holds the package's number and the names of the library.
GIT_SECONDS = 5.0


def program_version() -> str:
    """The version of this program, equal for equal sources."""
    return f"{dipaco.__version__}+{sources_digest(HOME)}"


@functools.cache
def sources_digest(home: Path) -> str:
    """Digest of the files under `home` that decide what a worker computes and records."""
    digest = hashlib.sha256()
    files = [file for file in home.rglob("*") if file.suffix in (".py", ".sql")]
    for name in sorted(file.relative_to(home).as_posix() for file in files):
        if name != NUMBER_FILE and name.partition("/")[0] not in ROOMS_APART:
            content = (home / name).read_bytes()
            digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:10]


@functools.cache
def described_version() -> str:
    """`program_version`, with the commit if it is known."""
    commit = commit_of(HOME)
    return f"{program_version()} (commit {commit})" if commit else program_version()


def commit_of(home: Path) -> str:
    """The commit of the package at `home`: of its checkout, or written when its wheel was built
    (`tools/support/wheel.py`). Empty if neither is there.
    """
    if (home.parent / ".git").exists():
        command = ["git", "-C", str(home.parent), "describe", "--always", "--dirty", "--abbrev=10"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            ended = subprocess.run(command, capture_output=True, text=True, timeout=GIT_SECONDS)
            return ended.stdout.strip()
    with contextlib.suppress(OSError):
        return (home / "commit.txt").read_text().strip()
    return ""


def write_wheel(folder: Path) -> Path:
    """Writes this program as a wheel that is named by its version, for machines without the
    sources: `uvx --from FILE`.
    """
    version, found = program_version(), importlib.metadata.distribution("dipaco")
    info = f"dipaco-{version}.dist-info"
    # A checkout from which it was installed has the second.
    metadata = found.read_text("METADATA") or found.read_text("PKG-INFO") or ""
    files = [file for file in sorted(HOME.rglob("*")) if file.is_file()]
    contents = {
        file.relative_to(HOME.parent).as_posix(): file.read_bytes()
        for file in files
        if "__pycache__" not in file.parts
    }
    contents |= {
        "dipaco/commit.txt": commit_of(HOME).encode(),
        f"{info}/METADATA": re.sub(r"(?m)^Version: .*", f"Version: {version}", metadata).encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": (found.read_text("entry_points.txt") or "").encode(),
    }
    record = f"{info}/RECORD,,\n"
    for name, content in contents.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(content)}\n"
    file = folder / f"dipaco-{version}-py3-none-any.whl"
    with translate_os_errors(file), zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in (contents | {f"{info}/RECORD": record.encode()}).items():
            wheel.writestr(name, content)
    return file


def is_this_program(found: str) -> bool:
    """True if `found` has this program's sources that make bits and facts. The number does not
    count, so that machines may change over one after the other if nothing else differs.
    """
    return digest_in(found) == sources_digest(HOME)


def digest_in(found: str) -> str:
    """The `sources_digest` in a described version, or empty."""
    return found.partition(" ")[0].partition("+")[2]


def check_version(folder: object, found: str) -> None:
    """Checks that this program may read a run, since tables and objects differ by version.

    Raises:
      RunOfOtherVersion: `found`, which it is pinned to, is another.
    """
    is_of_number = found.split()[0].partition("+")[0] == dipaco.__version__
    if not (is_of_number or is_this_program(found)):
        raise RunOfOtherVersion(folder=folder, found=found, here=described_version())


def check_program(folder: object, found: str) -> None:
    """For programs that work on a run: they give the same bits as its other workers.

    Raises:
      RunOfOtherVersion: the run is pinned to a program with other sources.
    """
    if not is_this_program(found):
        raise RunOfOtherVersion(folder=folder, found=found, here=described_version())
