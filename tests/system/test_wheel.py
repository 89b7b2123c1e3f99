"""A wheel, installed where there is no checkout: configs by name, a run, and its commit."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """A copy of what a wheel is made of, with one commit."""
    pytest.importorskip("setuptools", minversion="77", reason="setuptools is not installed")
    folder = tmp_path_factory.mktemp("checkout")
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    for room in ("dipaco", "configs"):
        shutil.copytree(ROOT / room, folder / room, ignore=ignored)
    (folder / "tools" / "support").mkdir(parents=True)
    for file in ("pyproject.toml", "tools/support/wheel.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, folder / file)
    git = ["git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    (folder / ".gitignore").write_text("/build/\n*.egg-info/\n")
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *command], check=True)
    return folder


def build(checkout: Path, into: Path) -> Path:
    """The wheel of a checkout, made without a network."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "-q"]
    flags = ["--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, *flags, "--wheel-dir", str(into), str(checkout)], check=True)
    (wheel,) = into.glob("dipaco-*.whl")
    return wheel


class Bare:
    """An environment with that wheel, without a checkout; libraries are those of this one."""

    def __init__(self, wheel: Path, folder: Path, cache: Path):
        self.home, self.here, self.wheel = folder / "installed", folder / "here", wheel
        self.here.mkdir(parents=True)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q"]
        flags = ["--no-deps", "--no-index", "--target", str(self.home)]
        subprocess.run([*pip, *flags, str(wheel)], check=True)
        self._environment = {
            **{name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ},
            "PYTHONPATH": str(self.home),
            "DIPACO_CACHE": str(cache),
            "JAX_PLATFORMS": "cpu",
        }

    def python(self, *arguments: str) -> str:
        return self.run(sys.executable, *arguments)

    def run(self, *command: str) -> str:
        """What a command prints, started in an empty folder."""
        ended = subprocess.run(
            command, cwd=self.here, env=self._environment, capture_output=True, text=True
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def dipaco(self, *arguments: str) -> str:
        return self.python("-m", "dipaco.cli.main", *arguments)


@pytest.fixture(scope="module")
def bare(checkout, tmp_path_factory, command_cache) -> Bare:
    folder = tmp_path_factory.mktemp("bare")
    return Bare(build(checkout, folder / "wheel"), folder, command_cache)


def test_its_version_says_the_commit_that_it_was_built_from(bare, checkout):
    git = ["git", "-C", str(checkout), "rev-parse", "--short=10", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    assert f"(commit {commit})" in bare.dipaco("--version")
    where = bare.python("-c", "import dipaco; print(dipaco.__file__)")
    assert Path(where.strip()).is_relative_to(bare.home)


def test_its_command_starts_and_an_index_would_take_it(bare):
    """`uvx --from WHEEL dipaco` starts this command, in an environment with all that it needs."""
    ended = bare.run(str(bare.home / "bin" / "dipaco"), "--version")
    assert ended == bare.dipaco("--version")
    pytest.importorskip("twine", reason="twine, of the extra `test-all`, is not installed")
    assert "PASSED" in bare.python("-m", "twine", "check", "--strict", str(bare.wheel))


def test_it_trains_a_shipped_config_by_name_and_a_copy_of_one(bare):
    assert "quickstart" in bare.dipaco("config", "list")
    bare.dipaco("config", "copy", "quickstart", "my.py")
    of_copy = bare.dipaco("config", "show", "my.py", "--json")
    assert of_copy == bare.dipaco("config", "show", "quickstart", "--json")
    assert "modular_best_path" in bare.dipaco("train", "toy", "--run", "runs/toy")
    said = bare.python("-c", "import dipaco; print(repr(dipaco.open('runs/toy')))")
    assert said.startswith("toy, seed 0, in runs/toy: finished")


def test_what_is_not_installed_is_named_by_packages_that_an_index_has(bare):
    """A clone names itself and the extra. No index has dipaco."""
    code = """
from dipaco.errors import EXTRAS, ExtraMissing
for extra in {*EXTRAS.values(), "tpu-compile"}:
    print(ExtraMissing(feature="This", package="it", extra=extra))
"""
    said = bare.python("-c", code).splitlines()
    assert "`pip install 'psycopg[binary]>=3.2'`." in " ".join(said)
    assert [each for each in said if not re.search(r"`pip install '?[a-z]", each)] == []
    assert [each for each in said if "dipaco" in each] == []


def test_a_wheel_of_a_source_distribution_says_the_same_commit(checkout, bare, tmp_path):
    code = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    command = [sys.executable, "-c", code, str(tmp_path)]
    subprocess.run(command, cwd=checkout, check=True, capture_output=True)
    (archive,) = tmp_path.glob("dipaco-*.tar.gz")
    shutil.unpack_archive(archive, tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    other = Bare(build(unpacked, tmp_path / "wheel"), tmp_path, tmp_path)
    assert other.dipaco("--version") == bare.dipaco("--version")
    assert other.dipaco("config", "list") == bare.dipaco("config", "list")
