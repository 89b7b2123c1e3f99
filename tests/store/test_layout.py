"""Names on disk: all files of a run are in its folder, and attempts never share a name."""

from pathlib import Path

from dipaco.store.layout import Layout


def test_all_files_of_a_run_are_in_its_folder():
    layout = Layout(Path("runs/one"))
    places = [
        layout.ledger, layout.lock, layout.corpus, layout.events, layout.tensorboard,
        layout.report("json"), layout.report("md"),
    ]  # fmt: skip
    assert all(place.is_relative_to("runs/one") for place in places)
    assert len(set(places)) == len(places)


def test_each_attempt_at_a_snapshot_has_its_own_name():
    layout = Layout(Path())
    names = {
        layout.snapshot(arm, path, phase, attempt)
        for arm in ("modular", "dense")
        for path in (0, 1, 10, 100)
        for phase in (0, 1, 11)
        for attempt in (1, 11)
    }
    assert len(names) == 2 * 4 * 3 * 2
    assert layout.snapshot("modular", 3, 12, 1) == "snapshots/modular/0003/000012-1"
