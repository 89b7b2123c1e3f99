"""The overview of a run: its first line, its workers, a grid of its paths; cut to a terminal."""

import pytest

from dipaco.observe.details import details
from dipaco.observe.overview import fit, headline, overview


def status_of(*, workers=(), paths=(), num_paths=4, finished=False, **changes):
    """What `dipaco status --json` prints, as far as an overview reads it."""
    arm = {
        "phases": 4,
        "steps": 80,
        "num_paths": num_paths,
        "modules": {"early/0000": {"phase": 2, "digest": "d"}},
        "paths": {str(path): {"step": step, "loss": 5.0} for path, step in paths},
        "evaluations": [],
    }
    return {
        "name": "quick",
        "seed": 0,
        "rules": {},
        "finished": finished,
        "why": {"sentence": "3 tasks are ready"},
        "bits": "the same",
        "progress": {"steps": 160, "total_steps": 320, "work_left_seconds": 240.0},
        "workers": dict(workers),
        "failures": [],
        "unfinished": [],
        "unsent_snapshots": {},
        "arms": {"modular": arm},
    } | changes


def worker(state="here", task="train modular path 2", silent_seconds=107):
    return {
        "state": state,
        "task": task,
        "task_seconds": 14.0,
        "silent_seconds": silent_seconds,
        "participation": 0.9,
        "committed_tasks": 3,
        "lost_tasks": 0,
    }


def test_the_first_line_says_how_far_how_long_and_who():
    two = {"a": worker(), "b": worker()}
    said = headline(status_of(workers=two))
    assert said == "quick, seed 0: 50 %, about 2 min 00 s left; 2 workers are at work"


@pytest.mark.parametrize(
    "workers", [{}, {"a": worker("silent")}, {"a": worker("lost", None)}, {"a": worker(task=None)}]
)
def test_the_first_line_says_that_nobody_is_working(workers):
    said = headline(status_of(workers=workers))
    assert said == "quick, seed 0: 50 %, about 4 min 00 s left for one worker; nobody is working"


def test_before_any_step_the_time_left_is_not_guessed():
    nothing = {"steps": 0, "total_steps": 320, "work_left_seconds": None}
    assert "0 %, time left not known yet" in headline(status_of(progress=nothing))


def test_all_steps_are_not_yet_a_finished_run():
    all_steps = {"steps": 320, "total_steps": 320, "work_left_seconds": 0.0}
    assert "99 %" in headline(status_of(progress=all_steps))


def test_a_finished_run_has_no_workers_whatever_they_last_said():
    workers = {"a": worker(), "b": worker("silent"), "c": worker("lost", None)}
    shown = overview(status_of(workers=workers, finished=True), 80)
    assert shown[0] == "quick, seed 0: finished, 100 % of 320 steps; nobody is working"
    assert "workers: none, 3 took part; bits: the same" in shown
    assert not [line for line in shown if "silent" in line]


def test_256_paths_are_a_grid_of_characters_that_fits():
    paths = [(0, 80), (1, 40), (2, 1), (9, 79)]
    task = {"kind": "train", "arm": "modular", "subject": "3", "state": "claimed"}
    shown = overview(status_of(paths=paths, num_paths=256, unfinished=[task]), 80)
    grid = [line for line in shown if line.startswith(" ")]
    assert len(grid) == 4
    assert grid[0].split()[:3] == ["0", "#51*....", ".9......"]
    assert sum(len("".join(line.split()[1:])) for line in grid) == 256
    assert max(map(len, shown)) <= 80


def test_many_workers_are_counted_not_listed():
    shown = overview(status_of(workers={f"w{n}": worker() for n in range(50)}), 80)
    assert "workers: 50 here, 0 silent, 0 gone; bits: the same" in shown
    assert "  and 42 more" in shown


def test_lines_are_cut_to_the_terminal():
    lines = [f"line {number} of a few words" for number in range(20)]
    assert fit(lines, 80, 20) == lines
    cut = fit(lines, 10, 5)
    assert cut == [*["line 0 of…", "line 1 of…", "line 2 of…", "line 3 of…"], "… 16 more…"]


def large():
    """256 paths, 100 workers, five failures, and three arms besides."""
    paths = [(path, 40) for path in range(256)]
    many = status_of(paths=paths, num_paths=256)["arms"]["modular"]
    one = status_of(paths=[(0, 40)], num_paths=1)["arms"]["modular"]
    arms = {"base": one, "modular": many, "dense": one, "data_parallel": many}
    failure = {"task": "train modular path 7 phase 3", "state": "failed", "reason": "no space"}
    failure |= {"errors": 3, "crashes": 0, "losses": 0}
    workers = {f"w{n:02d}": worker() for n in range(100)}
    return status_of(workers=workers, arms=arms, failures=[failure] * 5)


def test_at_256_paths_24_lines_say_what_went_wrong_and_name_every_arm():
    shown = overview(large(), 80, 23)
    assert len(shown) <= 23
    assert fit(shown, 80, 23) == shown  # nothing is left over
    assert [line.split(":")[0] for line in shown[2:6]] == ["went wrong"] * 4
    assert shown[5] == "went wrong: 2 more, each with `--json`"
    for arm in ("base", "modular", "dense", "data_parallel"):
        assert any(line.startswith(f"{arm}  phase") for line in shown)
    grid = [line for line in shown if "55555555" in line]
    assert len(grid) == 4
    assert shown.index(grid[0]) == next(
        n for n, line in enumerate(shown, 1) if line.startswith("modular")
    )


@pytest.mark.parametrize(("height", "workers", "grids"), [(23, 2, 4), (30, 5, 8), (36, 8, 8)])
def test_workers_take_the_room_that_is_left_and_all_are_counted(height, workers, grids):
    shown = overview(large(), 80, height)
    assert len(shown) <= height
    named = [line for line in shown if line.startswith("  w")]
    (more,) = (line for line in shown if line.startswith("  and "))
    assert len(named) == workers
    assert len(named) + int(more.split()[1]) == 100
    assert sum("55555555" in line for line in shown) == grids


def detailed():
    """What `details` asks for beside an overview."""
    return (
        status_of()
        | {"stages_done": [], "stages": {}, "outside_bounds": "", "swarms": [], "volunteers": []}
        | {"locked_credentials": [], "command": "run", "bytes": {}, "stored": None}
        | {"bytes_per_machine": {"until_now": 0, "of_the_run": 0}}
        | {"quorum": None, "rollbacks": [], "goodput": {"worker_seconds": 0}, "refusals": []}
    )


def test_details_show_the_newest_of_many_evaluations():
    status = detailed() | {"samples": []}
    evaluations = [{"phase": phase, "perplexity": 20.0} for phase in range(1, 401)]
    status["arms"]["modular"]["evaluations"] = evaluations
    status["arms"]["modular"]["paths"] = {}
    shown = list(details(status))
    assert "  400 evaluations, the newest here, each with `--json`" in shown
    assert [line for line in shown if "perplexity" in line] == [
        f"  perplexity 20.00 at phase {phase}" for phase in range(393, 401)
    ]


def test_bytes_of_a_machine_are_shown_of_a_run_by_several():
    status = detailed() | {"samples": []}
    assert not any("bytes" in line for line in details(status))
    status["bytes_per_machine"] = {"until_now": 41_200_000, "of_the_run": 90_400_000}
    assert "bytes per machine, as planned: 41.2 MB of 90.4 MB" in list(details(status))


def test_a_single_phase_is_no_plural():
    status = detailed() | {"samples": []}
    status["arms"]["modular"] |= {"phases": 1, "steps": 1}
    assert "\nmodular: 1 phase, 1 step a path" in list(details(status))


def test_details_show_texts_on_one_line_each_and_only_where_there_are_some():
    status = detailed()
    text = {"domain": "law", "path": 3, "prompt": "In the", "text": "begin\nning\x1b[2J"}
    shown = list(details(status | {"samples": [text | {"arm": "modular", "phase": 2}]}))
    assert "  law, path 3: In the | begin ning [2J" in shown
    assert not any("samples of" in line for line in details(status | {"samples": []}))


def test_it_says_what_a_lost_machine_costs_where_snapshots_are_not_sent():
    said = "snapshots of 2 paths are on one disk: a lost machine costs up to 3 phases of each"
    assert said in overview(status_of(unsent_snapshots={"0": 1, "2": 3}), 80)
    assert not any("snapshots" in line for line in overview(status_of(), 80))


def test_details_show_late_contributions():
    quorum = {
        "share": 0.5,
        "grace_seconds": 60.0,
        "taken": 8,
        "late": [],
        "in_grace": [],
        "newest_steps": {},
    }
    lines = list(details(detailed() | {"samples": [], "quorum": quorum}))
    assert "quorum 50% and 60 s of grace: 0 of 8 contributions were late" in lines


@pytest.mark.parametrize(("is_finished", "more"), [(False, "; a phase adds 2.0 GB"), (True, "")])
def test_the_details_say_how_the_disk_fills(is_finished, more):
    status = detailed() | {"stored": {"modules": 10**9}, "growth": 2 * 10**9, "samples": []}
    status |= {"is_cleaned": False}
    (line,) = (line for line in details(status | {"finished": is_finished}) if "stored" in line)
    assert line == f"stored: 1.0 GB: 1.0 GB modules{more}"
