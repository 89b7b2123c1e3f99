"""Builds distributions (`[tool.setuptools.cmdclass]` in `pyproject.toml`), which hold the shipped
configs and know their commit.
"""

import subprocess
from pathlib import Path

from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = Path(__file__).resolve().parents[2]


def write_commit(package: Path) -> None:
    """Writes the commit of this checkout into a package. An unpacked source distribution is no
    checkout, and has the file already.
    """
    if (HERE / ".git").exists():
        command = ["git", "-C", str(HERE), "describe", "--always", "--dirty", "--abbrev=10"]
        said = subprocess.run(command, capture_output=True, text=True, check=True)
        (package / "commit.txt").write_text(said.stdout)


class BuildWithConfigs(build_py):
    """A wheel. An installation that is editable reads the checkout itself."""

    def run(self):
        super().run()
        if self.editable_mode:
            return
        package = Path(self.build_lib) / "dipaco"
        for file in sorted((HERE / "configs").rglob("*.py")):
            target = package / "configs" / file.relative_to(HERE / "configs")
            self.mkpath(str(target.parent))
            self.copy_file(str(file), str(target))
        write_commit(package)


class SdistWithCommit(sdist):
    """A source distribution, from which a wheel may be built elsewhere."""

    def make_release_tree(self, base_dir, files):
        here = [HERE / "tools/support/wheel.py", *sorted((HERE / "configs").rglob("*.py"))]
        files = [*files, *(str(file.relative_to(HERE)) for file in here)]
        super().make_release_tree(base_dir, files)
        write_commit(Path(base_dir) / "dipaco")
