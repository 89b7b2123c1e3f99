"""A machine that only serves needs what `serving/requirements.txt` lists, all of it and no more."""

import json
import signal

import pytest

from dipaco.errors import NOT_FOR_SERVING
from tests.support.absent_packages import Bare, canonical, declared, import_names
from tests.support.server_process import Server
from tests.support.tiny_run import HOME

requirements = pytest.importorskip("packaging.requirements")
pytest.importorskip("starlette", reason="HTTP needs the `serve` extra")

LISTED = HOME / "dipaco" / "serving" / "requirements.txt"
NOT_ASKED_FOR_HERE = {"aiohttp", "jinja2", "llguidance", "pyyaml", "tensorstore"}


def listed() -> dict[str, str]:
    """Package -> its line without the comment."""
    lines = [line.partition("#")[0].strip() for line in LISTED.read_text().splitlines()]
    return {canonical(requirements.Requirement(line).name): line for line in lines if line}


@pytest.fixture
def bare(tmp_path):
    """All other packages of this machine are absent."""
    made = Bare(tmp_path, listed())
    assert {"matplotlib", "pyarrow", "grain", "array_record"} <= made.absent
    return made


def test_the_ranges_are_those_of_the_project():
    known, of_extra = declared("serve", "train"), declared("serve")
    assert listed().items() <= known.items()
    assert of_extra.keys() == listed().keys(), "what `pip install 'dipaco[serve]'` brings"
    others = known.keys() - listed().keys()  # `pip` is started, not imported
    not_imported = {"pylab", "mpl_toolkits"} | import_names({"pip"})
    assert import_names(others) - not_imported == NOT_FOR_SERVING


def test_the_plain_tests_need_what_training_needs_but_for_pyarrow():
    """It is a sixth of all that they would install. Tests of Parquet are skipped without it."""
    training, tests = declared("train"), declared("test")
    assert training.items() - tests.items() == {("pyarrow", training["pyarrow"])}


@pytest.mark.slow
def test_the_plain_tests_are_collected_with_what_they_install_alone(tmp_path):
    bare = Bare(tmp_path, declared("test").values())
    assert {"aiohttp", "pandas", "starlette", "torch"} <= bare.absent
    words = ("-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider")
    done = bare.python(*words, DIPACO_EVERYTHING_INSTALLED="")
    assert done.returncode == 0, done.stdout[-2000:]


@pytest.mark.slow
def test_a_completion_is_served_without_any_other_package(tiny, bare, command_cache):
    server = Server(tiny.folder, command_cache, "--rows", "2", path=[bare.folder])
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
    imported = bare.imported()
    for package in listed().keys() - NOT_ASKED_FOR_HERE:
        assert import_names({package}) & imported, f"{package} is listed, and not needed"


def test_what_is_missing_for_other_verbs_is_named(bare, tmp_path):
    train = ("-m", "dipaco.cli.main", "train", "toy", "--run", tmp_path / "run")
    ended = bare.python(*train)
    assert ended.returncode == 4, ended.stderr
    assert (
        "ExtraMissing: This needs the package `array_record`, which is not installed."
        in ended.stderr
    )
    assert "Traceback" not in ended.stderr
