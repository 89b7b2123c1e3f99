"""Ctrl-C: at any moment a sentence, and one that is true of the verb."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from dipaco.cli import main as command_line
from dipaco.cli.main import main

HOME = Path(__file__).parents[2]
SWALLOWS = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
    pass  # it is raised here
except BaseException:
    pass
"""


AS_ASKED = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.Handlers[sys.argv[1]])
os.execv(sys.executable, [sys.executable, "-m", "dipaco.cli.main", *sys.argv[2:]])
"""


def show(config, *, ignored=False):
    """`dipaco config show`, in a process that is interrupted by what it loads."""
    handler = "SIG_IGN" if ignored else "SIG_DFL"
    return subprocess.run(
        [sys.executable, "-c", AS_ASKED, handler, "config", "show", config],
        cwd=config.parent,
        env=os.environ | {"PYTHONPATH": str(HOME)},
        capture_output=True,
        text=True,
    )


@pytest.fixture
def config(tmp_path, config_file):
    """A config whose first line imports a library that swallows an interrupt, as those do that
    call back from C.
    """
    (tmp_path / "library.py").write_text(SWALLOWS)
    file = tmp_path / "config.py"
    file.write_text(f"import library\n{config_file.read_text()}")
    return file


def test_in_the_middle_of_an_import_it_ends_the_process(config):
    ended = show(config)
    assert (ended.returncode, ended.stderr) == (130, "\nInterrupted.\n"), ended.stdout


def test_who_has_children_puts_them_in_order_first(tmp_path, config_file):
    """As a launcher does, whose workers do not hear of Ctrl-C."""
    (tmp_path / "library.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    config = tmp_path / "config.py"
    start = "child = subprocess.Popen(['sleep', '60'], start_new_session=True)\n"
    end = "child.kill()\n    print('in order', child.wait())\n"
    begun = f"import subprocess\n{start}try:\n    import library\nfinally:\n    {end}"
    config.write_text(f"{begun}{config_file.read_text()}")
    ended = show(config)
    assert (ended.returncode, ended.stdout) == (130, "in order -9\n"), ended.stderr


def test_where_it_is_ignored_it_stays_so(config):
    ended = show(config, ignored=True)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr


def test_outside_of_imports_what_was_begun_is_put_in_order(tmp_path, config_file):
    config = tmp_path / "config.py"
    end = "try:\n    os.kill(os.getpid(), signal.SIGINT)\nfinally:\n    print('in order')\n"
    config.write_text(f"import os, signal\n{end}{config_file.read_text()}")
    ended = show(config)
    assert (ended.returncode, ended.stderr) == (130, "\nInterrupted.\n")
    assert ended.stdout == "in order\n"


@pytest.mark.parametrize(
    ("words", "goes_on"),
    [
        ("train toy --run r", True),
        ("worker --run r", True),
        ("export --run r --all --out o", True),
        ("generate --run r --batch=f --out o", True),
        ("generate --run r --prompt x", False),
        ("evaluate --run r --documents d", False),
        ("dashboard --run r", False),
        ("status --run r --watch", False),
        ("swarm start toy --run r", True),
        ("swarm watch r --token t", False),
    ],
)
def test_only_a_verb_that_continues_says_so(words, goes_on, monkeypatch, capsys):
    class Interrupted:
        @staticmethod
        def run(options):
            raise KeyboardInterrupt

    known = dict.fromkeys(command_line.VERBS, Interrupted)
    top = command_line.parser()
    monkeypatch.setattr(command_line, "parser", lambda: top)
    monkeypatch.setattr(command_line, "VERBS", known)
    assert main(words.split()) == 130
    says = "Interrupted. The same command goes on from here." if goes_on else "Interrupted."
    assert capsys.readouterr().err == f"\n{says}\n"


def test_while_the_verbs_themselves_are_imported_it_ends_with_a_sentence(tmp_path):
    """As the command `dipaco` starts; it takes a second where Python's files are far away."""
    with (HOME / "pyproject.toml").open("rb") as stream:
        module, _, function = tomllib.load(stream)["project"]["scripts"]["dipaco"].partition(":")
    # Of this thread: with another the import could end before the signal is looked at.
    interrupted = "import signal\nsignal.raise_signal(signal.SIGINT)\n"
    (tmp_path / "difflib.py").write_text(interrupted)  # which a verb imports
    # Where the tests run in a script's background, Ctrl-C is ignored, and the child inherits that.
    listening = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    command = f"{listening}; from {module} import {function}; {function}()"
    ended = subprocess.run(
        [sys.executable, "-c", command, "status", "--run", "run"],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{HOME}"},
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stderr) == (130, "\nInterrupted.\n")
