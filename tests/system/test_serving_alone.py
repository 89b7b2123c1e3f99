"""A machine that only serves needs what `serving/requirements.txt` lists, all of it and no more."""

import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
import tomllib

import pytest

from dipaco.errors import NOT_FOR_SERVING
from tests.support.server_process import Server
from tests.support.tiny_run import HOME

requirements = pytest.importorskip("packaging.requirements")
pytest.importorskip("starlette", reason="HTTP needs the `serve` extra")

LISTED = HOME / "dipaco" / "serving" / "requirements.txt"
NOT_ASKED_FOR_HERE = {"jinja2", "llguidance", "tensorstore"}  # chats; schemas; buckets
# Refuses to import what such a machine does not have, and says at the end what was imported.
SITECUSTOMIZE = """
import atexit, json, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
atexit.register(lambda: open(FILE, "w").write(json.dumps(sorted(sys.modules))))
"""


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def listed() -> dict[str, str]:
    """Package -> its line without the comment."""
    lines = [line.partition("#")[0].strip() for line in LISTED.read_text().splitlines()]
    return {canonical(requirements.Requirement(line).name): line for line in lines if line}


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


@pytest.fixture
def bare(tmp_path):
    """A folder for PYTHONPATH in which all other packages of this machine are absent."""
    there = installed_with(listed()) | {"dipaco", "packaging"}
    provided = importlib.metadata.packages_distributions()
    absent = {
        name for name, by in provided.items() if not any(canonical(each) in there for each in by)
    }
    assert {"matplotlib", "pyarrow", "grain", "array_record"} <= absent
    head = f"ABSENT = {sorted(absent)!r}\nFILE = {str(tmp_path / 'imported')!r}\n"
    (tmp_path / "sitecustomize.py").write_text(head + SITECUSTOMIZE)
    return tmp_path


def test_the_ranges_are_those_of_the_project():
    project = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]
    declared = {
        canonical(requirements.Requirement(line).name): line
        for line in (*project["dependencies"], *project["optional-dependencies"]["serve"])
    }
    assert listed().items() <= declared.items()
    of_extra = project["optional-dependencies"]["serve"]
    assert {canonical(requirements.Requirement(line).name) for line in of_extra} <= listed().keys()
    others = declared.keys() - listed().keys()  # `pip` is started, not imported
    of_matplotlib, of_yaml = {"pylab", "mpl_toolkits"}, {"_yaml"}
    not_imported = of_matplotlib | of_yaml | import_names({"pip"})
    assert import_names(others) - not_imported == NOT_FOR_SERVING


@pytest.mark.slow
def test_a_completion_is_served_without_any_other_package(tiny, bare, command_cache):
    server = Server(tiny.folder, command_cache, "--rows", "2", path=[bare])
    try:
        connection = server.connect()
        body = {"model": "toy", "prompt": "jiji", "max_tokens": 4, "ignore_eos": True}
        kind = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(body), kind)
        answer = connection.getresponse()
        said = json.loads(answer.read())
        connection.close()
        assert (answer.status, said["usage"]["completion_tokens"]) == (200, 4), said
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0
    finally:
        server.process.kill()
        server.process.communicate()
    imported = {name.partition(".")[0] for name in json.loads((bare / "imported").read_text())}
    for package in listed().keys() - NOT_ASKED_FOR_HERE:
        assert import_names({package}) & imported, f"{package} is listed, and not needed"


@pytest.mark.parametrize(
    ("arguments", "package"), [(("inspect",), "matplotlib"), (("train", "toy"), "array_record")]
)
def test_what_is_missing_for_other_verbs_is_named(tiny, bare, tmp_path, arguments, package):
    run = tiny.folder if arguments == ("inspect",) else tmp_path / "run"
    ended = subprocess.run(
        [sys.executable, "-m", "dipaco.cli.main", *arguments, "--run", str(run)],
        env=os.environ | {"PYTHONPATH": f"{bare}{os.pathsep}{HOME}"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 4, ended.stderr
    assert f"PackageMissing: The Python package `{package}` is not installed." in ended.stderr
    assert "Traceback" not in ended.stderr
