"""Shipped configs are found by name, from any folder, and copied to be edited."""

import re
from pathlib import Path

import pytest

from dipaco import shipped
from dipaco.cli.main import main
from dipaco.errors import BadConfigFile
from dipaco.observe.terminal import PLAIN_WIDTH
from dipaco.overrides import load_config, load_sweep

CONFIGS = Path(__file__).parents[1] / "configs"


def test_every_config_and_sweep_has_a_name_of_its_own():
    files = [*CONFIGS.glob("*.py"), *(CONFIGS / "ablations").glob("*.py")]
    assert sorted(shipped.shipped_files().values()) == sorted(files)


def test_a_name_is_a_shipped_config_and_a_file_of_that_name_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_config("quickstart", ["seed=3"]).seed == 3
    assert load_config("quickstart") == load_config(CONFIGS / "quickstart.py")
    assert load_sweep(Path("sharing")) == load_sweep(CONFIGS / "ablations" / "sharing.py")
    (tmp_path / "quickstart").write_text("from toy import run")
    assert load_config("quickstart").name == "toy"


@pytest.mark.parametrize(
    ("name", "offer"),
    [
        ("quikstart", "the nearest is `quickstart`"),
        ("configs/toys.py", "`toy`"),
        ("x", "shipped are"),
    ],
)
def test_a_name_that_is_not_there_is_answered_with_one_that_is(name, offer):
    with pytest.raises(BadConfigFile, match=offer):
        load_config(name)


def test_each_sweep_can_be_copied_and_still_finds_what_it_imports(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for file in (CONFIGS / "ablations").glob("*.py"):
        assert main(["config", "copy", file.stem, f"my_{file.name}"]) == 0
        assert load_sweep(tmp_path / f"my_{file.name}").keys() == load_sweep(file).keys()


def test_the_list_names_each_with_what_it_is(capsys):
    assert main(["config", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    heads = [number for number, line in enumerate(lines) if not line.startswith(" ")]
    assert [lines[number].split()[0] for number in heads] == ["configs,", "sweeps,"]
    first = [line for line in lines if re.match("  [a-z]", line)]
    assert {line.split()[0] for line in first} == shipped.shipped_files().keys()
    assert all(len(line.split()) > 3 for line in first)
    sweeps = [line.split()[0] for line in lines[heads[1] :] if line in first]
    assert {"sharing", "quickstart"} & set(sweeps) == {"sharing"}
    assert max(map(len, lines)) <= PLAIN_WIDTH
