"""A Python in which packages of this machine are absent, as on one with a smaller installation."""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tomllib

from packaging import requirements

from tests.support.tiny_run import HOME

# Finds nothing that such a machine does not have, and says at the end what was imported.
SITECUSTOMIZE = """
import atexit, importlib.machinery, json, sys

find_there = importlib.machinery.PathFinder.find_spec

def find_spec(_, name, path=None, target=None):
    return None if name.partition(".")[0] in ABSENT else find_there(name, path, target)

importlib.machinery.PathFinder.find_spec = classmethod(find_spec)
atexit.register(lambda: open(FILE, "w").write(json.dumps(sorted(sys.modules))))
"""


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(*extras: str) -> dict[str, str]:
    """Package -> its line in `pyproject.toml`: needed by dipaco itself, or with these extras."""
    project = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"]]
    for extra in extras:
        lines += project["optional-dependencies"][extra]
    return {canonical(requirements.Requirement(line).name): line for line in lines}


def installed_with(packages) -> set[str]:
    """The packages that an installer brings for these, themselves included."""
    found, todo = set(), [requirements.Requirement(name) for name in packages]
    while todo:
        wanted = todo.pop()
        if (name := canonical(wanted.name)) in found:
            continue
        found.add(name)
        try:
            needs = importlib.metadata.requires(wanted.name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # of another platform
        for need in map(requirements.Requirement, needs):
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                todo.append(need)
    return found


def import_names(packages) -> set[str]:
    provided = importlib.metadata.packages_distributions()
    return {
        name
        for name, by in provided.items()
        if any(canonical(distribution) in packages for distribution in by)
    }


class Bare:
    """A folder for PYTHONPATH with which only some packages are there.

    Args:
      folder: empty.
      packages: what is installed by name; what they need comes along.
    """

    def __init__(self, folder, packages):
        there = installed_with(packages) | {"dipaco", "packaging"}
        provided = importlib.metadata.packages_distributions()
        self.folder, self._imported = folder, folder / "imported"
        self.absent = {
            name
            for name, by in provided.items()
            if not any(canonical(each) in there for each in by)
        }
        head = f"ABSENT = {sorted(self.absent)!r}\nFILE = {str(self._imported)!r}\n"
        (folder / "sitecustomize.py").write_text(head + SITECUSTOMIZE)

    def python(self, *words, **variables) -> subprocess.CompletedProcess:
        """How a Python process with these packages has ended, in the folder of the project."""
        paths = {"PYTHONPATH": f"{self.folder}{os.pathsep}{HOME}"}
        return subprocess.run(
            [sys.executable, *map(str, words)],
            cwd=HOME,
            env=os.environ | paths | variables,
            capture_output=True,
            text=True,
        )

    def imported(self) -> set[str]:
        """The packages that the last process has imported, by the names that they have there."""
        return {name.partition(".")[0] for name in json.loads(self._imported.read_text())}
