"""The command line as a whole: help, settings, bad numbers, and output that cannot be written."""

import argparse
import contextvars
import io
import json
import os
import pwd
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dipaco import stopping
from dipaco.caches import cache_folder
from dipaco.cli import status
from dipaco.cli.errors import OutputNotLocal
from dipaco.cli.main import _refuse, _write_any_text, main, parser
from dipaco.cli.options import output_path
from dipaco.cli.roles import EXECUTOR, WORKER
from dipaco.data.config import DataConfig
from dipaco.errors import BadSource
from dipaco.shipped import shipped_files
from tests.cli.conftest import as_json
from tests.test_pages import all_parsers


def test_config_show_lists_the_final_settings(here, config_file):
    arguments = ("config", "show", config_file, "--set", "inner.steps=50", "--set", "phases=7")
    shown = here(*arguments)
    assert "inner.steps = 50\n" in shown.out
    assert "arm modular: 350 steps a path in 7 phases" in shown.out
    assert "level early: 2 experts, owns embed, block_00" in shown.out
    settings = as_json(here(*arguments, "--json"))
    assert (settings["inner"]["steps"], settings["phases"]) == (50, 7)
    of_one_set = ("config", "show", "--set", "inner.steps=50", "phases=7", config_file, "--json")
    assert as_json(here(*of_one_set)) == settings


def test_a_config_is_copied_and_followed_by_the_verb_that_takes_it(here, tmp_path):
    for name, place, copy, verb in (
        ("quickstart", "my.py", "my.py", "train"),
        ("sharing", "rows.py", "rows.py", "ablate"),
        ("toy", "", "toy.py", "train"),  # in a folder it keeps its name
        ("toy", "new/folder/", "new/folder/toy.py", "train"),  # which is made
    ):
        said = here("config", "copy", name, f"{tmp_path}/{place}")
        assert (said.code, (tmp_path / copy).is_file()) == (0, True), said.err
        assert (tmp_path / copy).read_bytes() == shipped_files()[name].read_bytes()
        assert f"dipaco {verb} {tmp_path}/{copy} --run DIR" in said.out
    again = here("config", "copy", "toy", tmp_path)
    assert (again.code, f"{tmp_path}/toy.py is there already" in again.err) == (2, True)


def test_a_slip_is_answered_with_what_was_meant(here):
    for words, says in {
        "trian toy": "there is no `trian`. Did you mean `train`?",
        "zzz": "there is no `zzz`. `dipaco --help` lists all.",
        "evaluate --run r --docs x": "Did you mean `--documents`",
        "serve --run r --temprature=1": "no option `--temprature`; `dipaco serve",
        "generate --run r --rule by": "Expected features or likelihood.",
        "evaluate --run r": "required: --documents",
    }.items():
        ended = here(*words.split())
        assert (ended.code, says in ended.err) == (2, True), ended.err


@pytest.mark.parametrize(
    "words",
    [
        "export --run r --all --out",
        "inspect --run r --picture",
        "dashboard --run r --export",
        "config copy toy",
        "swarm token --run r --name n --out",
    ],
)
def test_what_is_written_is_not_a_folder_with_the_name_of_a_bucket(words, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for place in ("s3://bucket/x", "s3:/bucket/x", "file:/a/x"):
        with pytest.raises(OutputNotLocal, match=f"{place} is to be written, and it is no place"):
            parser().parse_args([*words.split(), place])
    for place in ("x", "a:b", "C:/x", r"C:\x"):
        assert place in map(str, vars(parser().parse_args([*words.split(), place])).values())


@pytest.mark.parametrize("verb", ["serve", "generate --prompt x", "evaluate --documents x"])
def test_a_release_is_chosen_by_either_name(verb):
    for option in ("--phase", "--release"):
        assert parser().parse_args([*verb.split(), "--run", "r", option, "3"]).phase == 3


def test_a_worker_may_leave_outer_steps_to_executors():
    words = ["worker", "--run", "r"]
    all_kinds, others = (
        WORKER.kinds_of(parser().parse_args([*words, *option]))
        for option in ([], ["--no-outer-steps"])
    )
    assert set(all_kinds) - set(others) == {"outer"} == set(EXECUTOR.kinds_of(argparse.Namespace()))


def test_without_a_verb_all_are_listed(capsys):
    assert main([]) == 2
    assert "do a run, or continue one" in capsys.readouterr().err


def test_numbers_out_of_range_are_refused(here, tiny):
    train = f"train {tiny.config} --workers"
    for words, says in {
        f"{train} 9999999999": "`--workers` is 9999999999. Expected 1",
        f"{train} 0": "`--workers` is 0. Expected 1 or more. `dipaco begin` begins a run",
        "scale --workers 99999999999": "`--workers` is 99999999999. Expected 0 to",
        "monitor --metrics-port 99999": "`--metrics-port` is 99999. Expected 0 to 65535",
        "worker --coordinator here:1": "give `--hosts` as well",
    }.items():
        ended = here(*words.split(), "--run", tiny.folder)
        assert (ended.code, says in ended.err) == (2, True), ended.err


def test_a_folder_without_a_run_is_refused_and_left_alone(here, tiny, tmp_path):
    readers = [
        ("status",),
        ("generate", "--prompt", "x"),
        ("export", "--path", 0, "--out", tmp_path / "out"),
    ]
    for verb, *arguments in readers:
        ended = here(verb, "--run", tmp_path / "nowhere", *arguments)
        assert (ended.code, "holds no run. Begin one" in ended.err) == (2, True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("output", "code", "said"),
    [
        ("> /dev/full", 4, "DiskFull: No space left"),
        ("| false", 0, ""),  # which reads nothing
        (">&- <&-", 0, ""),
    ],
)
def test_output_that_cannot_be_written_makes_no_traceback(config_file, output, code, said):
    home = str(Path(__file__).parents[2])
    script = f"'{sys.executable}' -m dipaco.cli.main config show '{config_file}' {output}"
    ended = subprocess.run(
        ["bash", "-c", f"{script}; exit ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        cwd=home,
    )
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr
    assert "Exception ignored" not in ended.stderr
    assert said in ended.stderr


def test_a_sentence_does_not_steer_the_terminal(capsys):
    """It may hold a name out of a stranger's file."""
    _refuse(BadSource(source="x", problem="\x1b[2J\u202e.", advice="One.\nTwo."))
    assert capsys.readouterr().err.endswith(r"read: \x1b[2J\u202e. One." "\nTwo.\n")


@pytest.mark.parametrize("platform", ["nonsense", "cuda,nonsense"])
def test_devices_that_are_not_there_are_a_sentence(config_file, tmp_path, platform):
    words = ["train", str(config_file), "--run", str(tmp_path / "run")]
    ended = subprocess.run(
        [sys.executable, "-m", "dipaco.cli.main", *words],
        capture_output=True,
        text=True,
        env=os.environ | {"JAX_PLATFORMS": platform},
        cwd=Path(__file__).parents[2],
    )
    assert ended.returncode == 4, ended.stderr
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith(f"NoDevice: JAX has no devices of {platform} here: ")
    assert "Traceback" not in ended.stderr


def test_a_defect_of_the_program_is_not_called_missing_devices(monkeypatch):
    def defect(_):
        raise RuntimeError("a defect")

    monkeypatch.setattr(status, "run", defect)
    with pytest.raises(RuntimeError, match="a defect"):
        main(["status", "--run", "x"])


def test_without_docstrings_an_error_says_its_values(monkeypatch):
    monkeypatch.setattr(BadSource, "__doc__", None)  # as `python -OO` leaves it
    assert str(BadSource(source="x:{}", problem="gone", advice="")) == (
        "source: x:{}; problem: gone; advice: "
    )


def test_an_argument_that_is_no_text_is_a_sentence(here):
    ended = here("status", "--run", os.fsdecode(b"caf\xe9"))
    assert ended.code == 2
    assert r"NotText: The argument `caf\udce9` holds bytes that are not text" in ended.err


def test_a_terminal_that_lacks_letters_gets_their_numbers(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    _write_any_text()
    print("\u05d0 a")
    sys.stdout.flush()
    assert sys.stdout.buffer.getvalue() == b"\\u05d0 a\n"


def test_a_user_without_a_home_has_a_cache_for_the_process(monkeypatch):
    for name in ("HOME", "DIPACO_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    folder = cache_folder()
    assert folder == cache_folder()
    assert folder.stat().st_mode & 0o777 == 0o700


def test_every_help_fits_a_terminal_of_80_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for each in all_parsers(parser()):
        assert [line for line in each.format_help().splitlines() if len(line) > 80] == [], each.prog


def test_a_tilde_is_the_home_in_every_path_that_is_given(monkeypatch):
    """No shell puts it into `--out=~/x`."""
    monkeypatch.setenv("HOME", "/home/me")
    taken = {
        each._get_value(action, "~/x")
        for each in all_parsers(parser())
        for action in each._actions
        if action.type in (Path, output_path)
    }
    assert taken == {Path("/home/me/x")}
    words = ["export", "--run=~/r", "--all", "--out=~/x"]
    options = parser().parse_args(words)
    assert (options.run.folder, options.out) == (Path("/home/me/r"), Path("/home/me/x"))
    monkeypatch.setenv("DIPACO_CACHE", "~/cache")
    assert cache_folder() == Path("/home/me/cache")
    assert DataConfig(tokenizer="~/t.json").tokenizer == "/home/me/t.json"


def test_a_command_that_is_printed_can_be_copied(here, config_file, tmp_path):
    """Whatever the name of the run."""
    folder = tmp_path / "a run; $(x) 'y'"
    begun = here("begin", config_file, "--run", folder)
    words = shlex.split(begun.out.strip().rpartition(": ")[2])
    assert words == ["dipaco", "worker", "--run", str(folder)]
    copied = here("config", "copy", "quickstart", folder / "my config.py").out
    assert shlex.split(copied.rpartition("then: ")[2])[2] == str(folder / "my config.py")
    said = here("status", "--run", f"{folder}2").err
    assert shlex.split(said.rpartition("one: ")[2])[-2:] == ["--run", f"{folder}2"]
    unquoted = r"--(?:run|launcher|token) \{(?!\w+!q\}|shlex|name\}).*"
    for file in (Path(__file__).parents[2] / "dipaco").rglob("*.py"):
        assert re.findall(unquoted, file.read_text()) == [], file


def test_a_run_without_its_option_is_told_the_option(here):
    says = "the run is given by `--run`: dipaco inspect --run runs/quickstart"
    assert says in here("inspect", "runs/quickstart").err
    for words in (("train", "quickstart"), ("generate", "--prompt", "x")):
        assert "arguments are required: --run" in here(*words).err, words


def test_a_doctor_says_what_works_and_what_does_not(here, tmp_path, monkeypatch):
    monkeypatch.setattr(stopping, "_patience", contextvars.ContextVar("patience", default=0.1))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = here("doctor", "--json", "--run", tmp_path / "new" / "run", "--port", port)
        found = json.loads(ended.out)
        bad = [each["name"] for each in found["findings"] if not each["is_good"]]
        assert (ended.code, found["is_good"], bad) == (4, False, [f"port {port}"])
    assert list(tmp_path.iterdir()) == [], "it leaves nothing behind"
    said = here("doctor", "--port", port, "--database", "postgresql://127.0.0.1:1/none")
    assert said.code == 4
    assert len(said.out.splitlines()) <= 24
    assert "\nBAD  database  DatabaseUnreachable" in said.out
    assert f"\nok   port {port}" in said.out


def test_a_doctor_writes_lists_and_clears_a_bucket_and_a_database(here, bucket, postgresql_server):
    at = ("--run", f"{bucket.url}/run", "--database", postgresql_server.url)
    found = json.loads(here("doctor", "--json", *at).out)
    says = {each["name"]: each for each in found["findings"]}
    assert says["bucket"]["is_good"], says
    assert says["database"]["is_good"], says


def test_a_shell_completes_verbs_and_options(here):
    pytest.importorskip("shtab", reason="the extra `completion` is not installed")
    for shell in ("bash", "zsh"):
        said = here("completion", shell)
        assert said.code == 0
        for word in ("train", "doctor", "--database"):
            assert word in said.out
