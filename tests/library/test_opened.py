"""`dipaco.open` gives what the verbs of the command line print, from the same functions."""

import dataclasses
import json
import math
import shutil
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest

import dipaco as library
from dipaco.config import MODULAR
from dipaco.data.errors import HalfCharacter
from dipaco.errors import BadSetting, NoSuchPath, NoTexts, UnknownSetting
from dipaco.evaluation.errors import PictureUnwritable
from dipaco.evaluation.tables import Report, render_text
from dipaco.library.console import title_of
from dipaco.library.errors import (
    ModuleNotReleased,
    NoSuchModule,
    RunClosed,
    RunOfOtherThread,
    RunUnfinished,
)
from dipaco.library.opened import OpenedRun
from dipaco.library.report import Comparison, RunReport
from dipaco.overrides import override
from dipaco.runs.errors import NoSuchArm, NoSuchRun
from dipaco.runs.opening import reading
from dipaco.serving.continuation import prompt_tokens
from dipaco.serving.dispatch import dispatch
from tests.support.absent_packages import Bare, declared

TEXTS = ["ba bi bo ba bu be " * 8, "da de di do du da " * 9, "short", "ka ki ku ka " * 20]


@pytest.fixture(scope="module")
def opened(tiny):
    with library.open(tiny.folder) as run:
        yield run


def test_its_repr_says_what_it_is_and_how_good(opened, tiny):
    title, sizes, results = repr(opened).splitlines()
    assert title == f"toy, seed 0, in {tiny.folder}: finished"
    assert sizes.startswith("modular: 4 paths of ")
    assert "4 modules of" in sizes
    assert "release of phase 2" in results
    assert "modular " in results


def test_two_runs_are_compared_row_by_row(tiny, opened):
    same = library.compare(tiny.folder, opened)
    assert {row["change"] for row in same.rows} == {0}
    assert (same.notes, same.by) == (["All settings are the same."], "perplexity")
    changed = ("topology=2x3", "phases=4", "base.steps=9", "report.link_megabits=5", "seed=3")

    class Changed(OpenedRun):
        config = override(opened.config, list(changed))

    (differs,) = library.compare(opened, Changed(opened._run, MODULAR, None)).notes
    assert all(f"`{name.partition('=')[0]}" in differs for name in changed), differs
    report = opened.report
    rows = [
        dataclasses.replace(row, perplexity=9.0, bits_per_byte=2 * row.bits_per_byte)
        for row in report.content.rows
        if row.name != "dense"
    ]
    other = RunReport(dataclasses.replace(report.content, rows=rows))
    found = Comparison(report, other, ["inner.steps differs"], "bits_per_byte")
    assert "dense" not in found
    assert found["modular"]["perplexity"] == (report["modular"]["perplexity"], 9.0)
    assert found["modular"]["change"] == pytest.approx(1.0)
    assert "+100.0%" in repr(found)
    assert "| modular |" in found._repr_markdown_()
    assert repr(found).endswith("inner.steps differs")
    pytest.importorskip("pandas", reason="pandas is not installed")
    assert len(found.data_frame()) == len(rows)


def test_a_run_begins_with_its_text_and_tokenizer(tiny):
    with reading(tiny.folder) as run:
        _, start = title_of(run).splitlines()
    assert start == f"text: {', '.join(run.config.data.sources)}; tokenizer: trained on it"


def test_a_run_that_is_half_done_says_what_is_to_do_and_has_no_report(half):
    with library.open(half.folder) as run:
        assert "tasks to do" in repr(run)
        assert not run.is_finished
        with pytest.raises(RunUnfinished, match=r": \d+ tasks to do\. "):
            _ = run.report


READ = {
    "is_finished": lambda run: run.is_finished,
    "report": lambda run: run.report,
    "release": lambda run: run.release,
    "samples": lambda run: run.samples,
    "route": lambda run: run.route("ba"),
    "with": lambda run: run.__enter__(),
}


@pytest.mark.parametrize("read", READ.values(), ids=READ)
def test_a_closed_run_is_opened_again_and_is_not_damaged(tiny, read):
    with library.open(tiny.folder) as run:
        pass
    run.close()  # once more, which changes nothing
    with pytest.raises(RunClosed, match=r"was closed\. Open it again: `dipaco\.open"):
        read(run)


def test_what_needs_no_ledger_is_told_of_a_closed_run(tiny):
    with library.open(tiny.folder) as run:
        known = (run.folder, run.config, run.modules)
    assert (run.folder, run.config, run.modules) == known
    title, sizes = repr(run).splitlines()
    assert title == f"toy, seed 0, in {tiny.folder}: closed"
    assert sizes.startswith("modular: 4 paths of ")


def test_another_thread_opens_the_run_for_itself(opened, tiny):
    def elsewhere(run):
        for read in (*READ.values(), OpenedRun.close):
            with pytest.raises(RunOfOtherThread, match="Open it in this one as well"):
                read(run)
        return repr(run)

    with ThreadPoolExecutor(1) as pool:
        title = pool.submit(elsewhere, opened).result().splitlines()[0]
    assert title == f"toy, seed 0, in {tiny.folder}: opened by another thread"
    assert opened.is_finished


def test_the_report_is_that_of_the_file(opened, tiny):
    written = Report.from_json((tiny.folder / "report.json").read_bytes())
    report = opened.report
    assert report.content.rows == written.rows
    assert repr(report) == render_text(written.table)
    assert (
        report["modular"]["perplexity"] == written.rows[[*report.names].index("modular")].perplexity
    )
    assert "| modular |" in report._repr_markdown_()
    assert json.dumps(report.rows)
    # It is a mapping of names to records.
    assert list(report) == report.names
    assert len(report) == len(report.rows)
    assert "modular" in report
    assert "nope" not in report
    assert list(dict(report).values()) == report.rows


def test_the_report_is_a_data_frame_where_pandas_is(opened):
    pytest.importorskip("pandas", reason="pandas is not installed")
    frame = opened.report.data_frame()
    assert list(frame.index) == opened.report.names
    assert frame.loc["modular", "perplexity"] == opened.report["modular"]["perplexity"]


def test_modules_are_those_of_the_release_and_make_its_paths(opened):
    assert opened.modules == ("early/0000", "early/0001", "late/0000", "late/0001")
    parts = {**opened.module("early/0000"), **opened.module("late/0001")}
    (path,) = [
        number
        for number, modules in enumerate(opened.release.paths)
        if set(modules) == {"early/0000", "late/0001"}
    ]
    whole = opened.path(path)
    assert parts.keys() == whole.keys()
    jax.tree.map(np.testing.assert_array_equal, parts, whole)


def test_a_module_that_is_not_there_is_named_with_those_that_are(opened):
    with pytest.raises(NoSuchModule, match=r"early/0003.*early/0000, early/0001"):
        opened.module("early/0003")
    with pytest.raises(NoSuchPath):
        opened.path(4)
    with pytest.raises(BadSetting, match=r"`path` is '1'\. Expected a whole number, 0 to 3\."):
        opened.path("1")


def test_half_of_a_character_in_a_text_is_a_sentence(opened):
    for use in (opened.score, opened.route, opened.generate):
        with pytest.raises(HalfCharacter, match=r"half of a character, '\\ud83d', after 'cut: '"):
            use("cut: \ud83d and more of it")


def test_a_module_that_paths_hold_at_different_phases_wants_a_path(opened, monkeypatch):
    release = opened.release
    first = {**release.paths[0], "early/0000": "older"}
    objects = {**release.objects, "older": release.objects[release.paths[1]["early/0000"]]}
    mixed = release._replace(paths=(first, *release.paths[1:]), objects=objects)
    monkeypatch.setattr(OpenedRun, "release", mixed)
    with pytest.raises(ModuleNotReleased, match="path=N"):
        opened.module("early/0000")
    assert opened.module("early/0000", path=0)


def test_texts_are_routed_as_one_prompt_after_another(opened):
    paths = opened.route(TEXTS)
    alone = [
        dispatch(opened._run, opened.release, prompt_tokens(opened._run, text)).path
        for text in TEXTS
    ]
    assert paths.tolist() == alone
    assert opened.route(TEXTS[0]).tolist() == alone[:1]


def test_a_dense_arm_has_one_path_which_takes_all(tiny):
    with library.open(tiny.folder, arm="base") as run:
        assert run.route(TEXTS).tolist() == [0] * len(TEXTS)
    with pytest.raises(NoSuchArm, match="modular"):
        library.open(tiny.folder, arm="modules")


def test_greedy_text_is_that_of_the_command_line(opened, here, tiny):
    made = opened.generate("ba bi bo", max_tokens=8, temperature=0)
    ended = here(
        *("generate", "--run", tiny.folder, "--prompt", "ba bi bo"),
        *("--max-tokens", 8, "--temperature", 0),
    )
    assert ended.code == 0, ended.err
    assert str(made) == ended.out.rstrip("\n")
    assert made.path == opened.route("ba bi bo")[0]
    assert f"path {made.path}, {made.num_tokens} tokens, seed 0" in repr(made)


def test_a_seed_makes_the_same_text_again_and_settings_are_checked(opened):
    first, again = (opened.generate("da", max_tokens=12, seed=3) for _ in range(2))
    assert first == again
    assert opened.generate("da", max_tokens=2, path=2).path == 2
    for wrong in ({"max_tokens": 0}, {"temperature": -1.0}, {"top_p": 2.0}):
        with pytest.raises(BadSetting):
            opened.generate("da", **wrong)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"prompt": 5}, r"`prompt` is 5\. Expected a text\."),
        ({"max_tokens": 5.5}, r"`max_tokens` is 5\.5\. Expected a whole number, 1 or more\."),
        ({"max_tokens": True}, r"`max_tokens` is True\. Expected a whole number"),
        ({"seed": -1}, r"`seed` is -1\. Expected a whole number, 0 to 9223372036854775807\."),
        ({"seed": 2**63}, r"`seed` is 9223372036854775808\. Expected a whole number, 0 to 92"),
        ({"temperature": "hot"}, r"`temperature` is 'hot'\. Expected a number\."),
        ({"temperature": math.nan}, r"`temperature` is nan\. Expected 0 \(greedy\) or more\."),
        ({"top_k": 2.5}, r"`top_k` is 2\.5\. Expected a whole number, 0 or more\."),
        ({"logit_bias": "12"}, r"`logit_bias` is '12'\. Expected pairs of a token and a number\."),
        ({"rule": "x"}, r"`rule` is 'x'\. Expected one of features, likelihood\."),
    ],
)
def test_a_value_that_cannot_be_used_is_said_before_text_is_made(opened, given, says):
    with pytest.raises(BadSetting, match=says):
        opened.generate(**{"prompt": "da", "max_tokens": 2, **given})


def test_numbers_of_numpy_are_numbers(opened, tiny):
    given = {"max_tokens": np.int64(2), "seed": np.uint8(3), "temperature": np.float32(0.5)}
    assert opened.generate("da", **given) == opened.generate(
        "da", max_tokens=2, seed=3, temperature=0.5
    )
    with library.open(tiny.folder, phase=np.int64(2)) as run:
        assert run.release.phase == 2


@pytest.mark.parametrize("phase", ["2", 2.0, True, -1])
def test_a_phase_is_a_whole_number(tiny, phase):
    with pytest.raises(BadSetting, match=f"`phase` is {phase!r}. Expected a whole number, 0 or"):
        library.open(tiny.folder, phase=phase)


def test_a_score_is_what_evaluate_prints(opened, here, tiny, tmp_path):
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    ended = here("evaluate", "--run", tiny.folder, "--documents", file, "--json")
    assert ended.code == 0, ended.err
    printed, scored = json.loads(ended.out), opened.score(TEXTS)
    assert math.isclose(scored["perplexity"], printed["perplexity"], rel_tol=1e-6)
    assert scored["tokens"] == printed["tokens"]


def test_the_plot_is_a_picture_for_a_notebook_and_a_file(opened, tmp_path):
    picture = opened.plot(tmp_path / "report.svg")
    assert b"<svg" in (tmp_path / "report.svg").read_bytes()
    assert picture._repr_png_().startswith(b"\x89PNG")


def test_slips_are_answered_with_what_was_meant(opened, tmp_path):
    with pytest.raises(UnknownSetting, match="Did you mean `temperature`"):
        opened.generate("x", tempreature=1)
    with pytest.raises(UnknownSetting, match="Did you mean `max_tokens`"):
        opened.generate("x", tokens=5)
    with pytest.raises(KeyError, match=r"no row `nope`; there are .*modular"):
        _ = opened.report["nope"]
    with pytest.raises(PictureUnwritable, match=r"x\.xyz.* \.png, \.svg, \.pdf"):
        opened.plot(tmp_path / "x.xyz")
    with pytest.raises(BadSetting, match=r"`texts` is 3\. Expected a text, or several"):
        opened.route(3)
    with pytest.raises(NoTexts):
        opened.score([])


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(NoSuchRun, match=r"holds no run\. Begin one"):
        library.open(tmp_path)


def test_a_run_of_nearly_that_name_is_named(tiny):
    near = tiny.folder.with_name(tiny.folder.name[:-1])
    with pytest.raises(NoSuchRun, match=f"Did you mean {tiny.folder}"):
        library.open(near)


def test_the_names_of_the_library_are_listed_and_no_other_is_there():
    names = {name for name in dir(library) if not name.startswith("__")}
    assert names == {"OpenedRun", "Rules", "compare", "load_config", "open", "run"}
    with pytest.raises(AttributeError, match="opne"):
        _ = library.opne


def test_reading_changes_no_file(tiny, tmp_path):
    folder = shutil.copytree(tiny.folder, tmp_path / "run")

    def content():
        files = (file for file in folder.rglob("*") if file.is_file())
        return {file: file.read_bytes() for file in files if "ledger" not in file.name}

    before = content()
    with library.open(folder) as run:
        assert repr(run)
        assert run.report.rows
    assert content() == before


DOORS = """
import contextlib, io, json, sys
from dipaco.cli.main import main
from dipaco.errors import DipacoError
import dipaco

folder, out = sys.argv[1:]
ends = {}
run = dipaco.open(folder)
doors = {
    "report": lambda: run.report,
    "module": lambda: run.module("early/0000"),
    "path": lambda: run.path(0),
    "route": lambda: run.route("ba bi"),
    "generate": lambda: run.generate("ba bi", max_tokens=1),
    "score": lambda: run.score("ba bi " * 40),
    "plot": lambda: run.plot(out + "/x.png"),
    "run": lambda: dipaco.run("toy", out + "/run", progress=False),
}
for name, door in doors.items():
    try:
        door()
    except DipacoError as error:
        ends[name] = f"{type(error).__name__}: {error}"
    except Exception as error:
        ends[name] = f"Traceback {error!r}"
at = ["--run", folder]
for words in (
    ["status", *at], ["inspect", *at], ["generate", *at, "--prompt", "ba"], ["dashboard", *at],
    ["evaluate", *at, "--documents", out + "/*/sitecustomize.py"], ["serve", *at],
    ["export", *at, "--path", "0", "--out", out + "/exported"],
    ["plan", "toy", "--workers", "2"], ["config", "show", "toy"], ["worker", *at], ["monitor", *at],
    ["begin", "toy", "--run", out + "/begun"], ["train", "toy", "--run", out + "/run"],
    ["clean", *at, "--dry-run"], ["swarm", "watch", "127.0.0.1:1", "--token", "none"],
):
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            main(words)
        ends[words[0]] = said.getvalue()
    except BaseException as error:
        ends[words[0]] = f"Traceback {error!r} {said.getvalue()}"
print(json.dumps(ends))
"""


@pytest.mark.slow
def test_with_no_extra_at_all_every_door_opens_or_names_what_to_install(tiny, copy_of, tmp_path):
    """As after `pip install` of a wheel alone."""
    (tmp_path / "bare").mkdir()
    bare = Bare(tmp_path / "bare", declared())
    ended = bare.python("-c", DOORS, copy_of(tiny).folder, tmp_path)
    assert ended.returncode == 0, ended.stderr
    ends = json.loads(ended.stdout.splitlines()[-1])
    assert [end for end in ends.values() if "Traceback" in end] == []
    for door in ("generate", "plot", "run", "serve", "train"):
        assert "Install it with `pip install -e " in ends[door], (door, ends[door])
