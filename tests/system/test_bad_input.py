"""Whatever a person, a file or a disk does wrong: exit code 2, 4 or 6, a sentence that says what to
do, no traceback, and what was there before is as it was.
"""

import contextlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from dipaco.errors import NOT_NOW
from tests.support.tiny_run import Fault, facts, in_ledger, report

NEW = [
    # (settings, the error, what the sentence must hold); spellings are in tests/test_config.py
    ("inner.step=5", "UnknownSetting", "Did you mean `inner.steps`?"),
    ("inner.steps=many", "BadSetting", "Expected a whole number"),
    (f"seed={2**70}", "BadSetting", "Expected at most 2^63 - 1"),
    ("inner.steps", "BadOverride", "NAME=VALUE"),
    ("name=\x1b[2J", "BadSetting", "`name` is '\\x1b[2J'. Expected text that can be printed"),
    ("model.vocab_size=200", "BadSetting", "256 bytes and one reserved id"),
    (
        "outer.synchronous=true outer.vocabulary_rows=holders",
        "SettingsDisagree",
        "so is `outer.vocabulary_rows`; paths that step together do without it",
    ),
    (
        "routing.rule=likelihood routing.shortlist=5",
        "SettingsDisagree",
        "there are 4 paths; None compares them all",
    ),
    ("data.sources=gopher:x", "BadSetting", "begin with packages:, text:"),
    ("mesh.tensor=16", "CannotTrainHere", "divides the number of devices"),
]


def test_a_setting_that_does_not_fit(here, dipaco, config_file, tmp_path):
    train = ("train", config_file, "--run", tmp_path / "run")
    for settings, error, advice in NEW:
        sets = [word for setting in settings.split() for word in ("--set", setting)]
        refused(here(*train, *sets), error, advice)
    refused(dipaco(*train, *sets), error, advice)  # a process of its own, as a user has it


def words(count: int, what: str = "word") -> str:
    return " ".join(f"{what}{i}" for i in range(count))


SHARDS = ("routing.floor=0", "routing.capacity=None")
DOCUMENTS = {
    "BinaryText": ({"a": words(200).encode(), "b": b"text \xff\xfe\x00"}, (), "Convert or remove"),
    "EmptyShard": (
        {f"{i}": words(60, f"w{i}").encode() for i in range(30)},
        ("data.router_fraction=0.5", "data.held_fraction=0.21", *SHARDS),
        "Use fewer paths, more text",
    ),
}


@pytest.mark.contract
@pytest.mark.parametrize("error", DOCUMENTS)
def test_text_that_cannot_be_trained_on(here, config_file, tmp_path, error):
    """Found by the first task, and by one after the base model."""
    files, settings, advice = DOCUMENTS[error]
    (tmp_path / "text").mkdir()
    for name, content in files.items():
        (tmp_path / "text" / f"{name}.txt").write_bytes(content)
    sets = (f"data.sources=text:{tmp_path}/text/*.txt?group=piece", "base.steps=0", *settings)
    command = ("train", config_file, "--run", tmp_path / "run", "--set", *sets)
    refused(here(*command), error, advice)
    refused(here(*command), error, advice)  # the second time as well


def test_a_run_that_could_not_read_its_text_takes_a_corrected_config(dipaco, config_file, tmp_path):
    binary = tmp_path / "binary.txt"
    binary.write_bytes(b"text \xff")
    command = ("train", config_file, "--run", tmp_path / "run")
    wrong = dipaco(*command, "--set", f"data.sources=text:{binary}")
    refused(wrong, "BinaryText", "Convert or remove the file")
    assert (
        "error: prepare read slice 0 has failed, and the run cannot go on" in wrong.out + wrong.err
    )
    assert (wrong.out + wrong.err).count("0xff") == 1  # the reason is said once
    assert "0xff" in (tmp_path / "run" / "events.jsonl").read_text()
    begun = dipaco(*command, fault=Fault("after record", "prepare"))
    assert begun.fired, begun.err


def test_files_that_are_not_there_are_said_before_a_folder_is_made(here, config_file, tmp_path):
    command = ("train", config_file, "--run", tmp_path / "run", "--set")
    refused(here(*command, "data.sources=text:nowhere/*.txt"), "BadSource", "Check the path")
    refused(here(*command, "data.tokenizer=nowhere.json"), "BadTokenizer", "tokenizer.json")
    nowhere = here("train", tmp_path / "config.py", "--run", tmp_path / "run")
    refused(nowhere, "BadConfigFile", "there is no such file")
    assert not (tmp_path / "run").exists()


def other_version(folder: Path) -> None:
    in_ledger(folder, "UPDATE meta SET value = '0.0.9' WHERE key = 'version'")


def other_schema(folder: Path) -> None:
    in_ledger(folder, "PRAGMA user_version = 99")


def spoilt(pattern: str, change: Callable[[bytes], bytes]):
    """Changes the bytes of every file of a pattern."""

    def spoil(folder: Path) -> None:
        files = [file for file in folder.glob(pattern) if file.is_file() and file.stat().st_size]
        assert files, f"no file {pattern}"
        for file in files:
            file.write_bytes(change(file.read_bytes()))

    return spoil


def flip(pattern: str, place: float = 0.7):
    """Turns one bit round, at a fraction of the length."""

    def flipped(content: bytes) -> bytes:
        at = int(len(content) * place)
        return content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :]

    return spoilt(pattern, flipped)


def turn_round(pattern: str):
    """Turns every bit round: wherever a program reads, it reads something else."""
    return spoilt(pattern, lambda content: bytes(byte ^ 255 for byte in content))


def cut(pattern: str):
    """Takes the last bytes away."""
    return spoilt(pattern, lambda content: content[:-7])


def remove(pattern: str):
    def spoil(folder: Path) -> None:
        there = list(folder.glob(pattern))
        assert there, f"no {pattern}"
        for found in there:
            shutil.rmtree(found) if found.is_dir() else found.unlink()

    return spoil


TOKENS, COPY = "corpus/tokens_00000.arrayrecord", "from a copy"
DAMAGE = [
    ("another version", other_version, "RunOfOtherVersion", "Continue with version 0.0.9"),
    ("another schema", other_schema, "LedgerVersion", "the program version that wrote it last"),
    ("a ledger that is none", flip("ledger.sqlite*", 0.0), "LedgerDamaged", COPY),
    ("other bytes in a token file", turn_round(TOKENS), "CorpusDamaged", "Delete the folder"),
]

MENDED = {
    "modules, outer states and contributions with a flipped byte": (
        flip("objects/modules/*"),
        flip("objects/states/*"),
        flip("objects/messages/**/*.safetensors"),
    ),
    "cut modules, row plans and a shard index with a flipped byte": (
        cut("objects/modules/*"),
        flip("objects/shards/*.npz"),
        flip("objects/shards/*.json"),
    ),
    "no modules, one path without snapshots, and one with damaged ones": (
        remove("objects/modules/*"),
        remove("snapshots/modular/0003/*"),
        flip("snapshots/modular/0002/*/**/d/*"),
    ),
}


@pytest.mark.contract
@pytest.mark.parametrize(
    ("spoil", "error", "advice"), [r[1:] for r in DAMAGE], ids=[r[0] for r in DAMAGE]
)
def test_a_run_folder_that_was_damaged(here, half, copy_of, spoil, error, advice):
    run = copy_of(half)
    spoil(run.folder)
    before = contents(run.folder)
    refused(here("train", run.config, "--run", run.folder), error, advice)
    # The task that waits first is done where the damage does not touch it: then what it made is
    # there, and the contributions of the phase before are gone.
    swept = "objects/messages/modular/early/0000/000000/"
    kept = {name: content for name, content in before.items() if not name.startswith(swept)}
    after = contents(run.folder)
    assert {name: after.get(name) for name in kept} == kept


FIRST, *OTHERS = MENDED


@pytest.mark.parametrize(
    "damage", [FIRST, *(pytest.param(each, marks=pytest.mark.slow) for each in OTHERS)]
)
def test_what_can_be_made_again_is_and_the_run_ends_as_if_nothing_had_happened(
    dipaco, half, tiny, copy_of, damage
):
    run = copy_of(half)
    for spoil in MENDED[damage]:
        spoil(run.folder)
    ended = dipaco("train", run.config, "--run", run.folder)
    assert ended.code == 0, ended.err
    assert "being recomputed" in ended.err
    assert facts(run.folder) == facts(tiny.folder)
    assert report(run.folder) == report(tiny.folder)


def test_a_corpus_that_was_damaged_is_made_again_as_the_message_says(dipaco, half, tiny, copy_of):
    run = copy_of(half)
    turn_round(TOKENS)(run.folder)
    refused(dipaco("train", run.config, "--run", run.folder), "CorpusDamaged", "prepares it again")
    shutil.rmtree(run.folder / "corpus")
    ended = dipaco(
        "train", run.config, "--run", run.folder, fault=Fault("after record", "train", nth=2)
    )
    assert ended.fired == "after record train", ended.err
    for table, rows in facts(run.folder).items():
        assert facts(half.folder)[table] <= rows <= facts(tiny.folder)[table]


def test_a_corpus_whose_sources_have_changed_is_not_trained_on(dipaco, config_file, tmp_path):
    source = tmp_path / "text.jsonl"
    write = lambda what: source.write_text(  # noqa: E731
        "".join(json.dumps({"text": words(60, f"{what}{i}")}) + "\n" for i in range(100))
    )
    write("one")
    command = ["train", config_file, "--run", tmp_path / "run"]
    command += ["--set", f"data.sources=jsonl:{source}"]
    assert dipaco(*command, fault=Fault("after claim", "pretrain")).fired
    shutil.rmtree(tmp_path / "run" / "corpus")
    write("two")
    refused(dipaco(*command), "CorpusChanged", "its sources have changed")


@pytest.mark.contract
def test_a_router_with_a_flipped_byte(here, tiny, copy_of):
    run = copy_of(tiny)
    flip("objects/routers/*")(run.folder)
    ended = here("generate", "--run", run.folder, "--prompt", "some text to go on with")
    refused(ended, "ObjectDamaged", COPY)
    assert not ended.out


def test_a_run_folder_of_another_config(here, half, copy_of):
    run = copy_of(half)
    before = contents(run.folder)
    ended = here("train", run.config, "--run", run.folder, "--set", "inner.steps=50")
    refused(ended, "RunOfOtherConfig", "`inner.steps` was 3 and is 50")
    assert contents(run.folder) == before


def test_an_origin_that_is_named_too_late(here, half, tiny):
    command = ("train", half.config, "--run", half.folder)
    refused(here(*command, "--from", f"{tiny.folder}@2"), "OptionTooLate", "--from")
    refused(here(*command, "--init-from", "anything"), "OptionTooLate", "--init-from")


def test_databases_that_cannot_be(here, half, config_file, tmp_path):
    before = contents(half.folder)
    command = ("train", config_file, "--run", tmp_path / "run", "--database")
    secret = "postgresql://ana:hunter2@127.0.0.1:1/runs"
    for folder in (tmp_path / "run", half.folder):
        ended = here("train", config_file, "--run", folder, "--database", secret)
        refused(ended, "PasswordOnCommandLine", "env:VARIABLE")
        assert "hunter2" not in ended.err
    refused(here(*command, "mysql://host/runs"), "BadDatabase", "Expected postgresql://")
    refused(here(*command, "env:NOT_SET"), "VariableMissing", "`NOT_SET`")
    other = here("train", config_file, "--run", half.folder, "--database", "postgresql://h/runs")
    refused(other, "RunOfOtherDatabase", "ledger.sqlite")
    assert contents(half.folder) == before


def test_a_run_on_a_disk_that_is_read_only_is_looked_at(here, tiny, read_only, tmp_path):
    run = read_only(tiny.folder)
    for words in (
        ["status"],
        ["inspect", "--json"],
        ["generate", "--prompt", "a", "--max-tokens", 2],
        ["export", "--path", 1, "--out", tmp_path / "exported"],
    ):
        ended = here(*words, "--run", run)
        assert ended.code == 0, ended.err
    for words in (["drain"], ["worker"], ["train", tiny.config], ["inspect"]):
        ended = here(*words, "--run", run)
        refused(ended, "NotWritable", "Read-only file system")
    assert "module early/0000  fan-in 2" in ended.out  # a picture takes nothing else away


@pytest.mark.slow
def test_a_disk_that_fills_up(dipaco, tiny, small_disk):
    command = ("train", tiny.config, "--run", small_disk.folder / "run")
    for limit in (40, 250, 700):
        refused(dipaco(*command, **small_disk.limited(limit)), *small_disk.error)
    ended = dipaco(*command, **small_disk.limited(100_000))
    assert ended.code == 0, ended.err
    assert facts(small_disk.folder / "run") == facts(tiny.folder)
    assert report(small_disk.folder / "run") == report(tiny.folder)


class SmallDisk(NamedTuple):
    """A place with a bound on it, and the error that meeting the bound must give."""

    folder: Path
    limited: Callable[[int], dict]  # kilobytes -> what to run a command with
    error: tuple[str, str]


@pytest.fixture
def small_disk(tmp_path) -> Iterator[SmallDisk]:
    """A disk of some kilobytes where we may mount one, else a bound on the size of each file."""

    def mount(kilobytes: int, *options: str) -> int:
        size = ",".join([f"size={kilobytes}k", *options])
        command = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(tmp_path)]
        with contextlib.suppress(FileNotFoundError):
            return subprocess.run(command, capture_output=True).returncode
        return 1

    def remount(kilobytes: int) -> dict:
        assert mount(kilobytes, "remount") == 0
        return {}

    if mount(8) == 0:
        try:
            yield SmallDisk(tmp_path, remount, ("DiskFull", "Free some space"))
        finally:
            subprocess.run(["umount", str(tmp_path)], check=True)
    else:
        bound = lambda kilobytes: {"file_bytes": kilobytes * 100}  # noqa: E731
        yield SmallDisk(tmp_path, bound, ("NotWritable", "What was there before is whole"))


def contents(folder: Path) -> dict[str, object]:
    """Every file but locks, logs and the database's own, which is compared by its facts."""
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file() and not re.match(r"ledger|run\.lock|events", file.name)
    }


# Another machine may do better.
MACHINES = ("CannotTrainHere", "CorpusDamaged", "DiskFull", "NotWritable", "VariableMissing")


def refused(ended, error: str, advice: str) -> None:
    """Exit code 2, 4 for faults of the machine, or 6 before an upgrade; the last lines are the
    error's name and its sentences; no traceback.
    """
    expected = NOT_NOW if error == "RunOfOtherVersion" else 4 if error in MACHINES else 2
    assert ended.code == expected, ended.err
    assert "Traceback" not in ended.err
    sentence = ended.err[ended.err.rindex(f"{error}: ") :]
    assert sentence.count("\n") <= 2, sentence
    assert advice in " ".join(sentence.split()), sentence
