"""Names on disk: attempts never share one."""

from pathlib import Path

from dipaco.store.layout import Layout


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
