"""Running totals are sums of the facts, whatever is recorded and set aside; on both databases."""

from dipaco.control.planning.tasks import Task
from tests.control.conftest import do_all, do_one, do_until

SUMS = {
    "path_totals": (
        "SELECT arm, path, phases, tokens, seconds, bytes_down, bytes_up, snapshot_bytes "
        "FROM path_totals WHERE phases > 0",
        "SELECT arm, path, count(*), sum(tokens), sum(seconds), sum(bytes_down), sum(bytes_up), "
        "sum(num_bytes) FROM trained GROUP BY arm, path",
    ),
    "path_machines": (
        "SELECT arm, path, machine, phases FROM path_machines WHERE phases > 0",
        "SELECT arm, path, machine, count(*) FROM trained GROUP BY arm, path, machine",
    ),
    "scores": (
        "SELECT arm, path, score_bytes FROM path_totals WHERE score_bytes > 0",
        "SELECT arm, path, sum(num_bytes) FROM scores GROUP BY arm, path",
    ),
    "module_totals": (
        "SELECT arm, module, num_bytes, state_bytes FROM module_totals WHERE num_bytes > 0",
        "SELECT arm, module, sum(num_bytes), sum(coalesce(state_bytes, 0)) FROM modules "
        "GROUP BY arm, module",
    ),
    "settled_tasks": (
        "SELECT kind, arm, subject, state, number FROM settled_tasks WHERE number > 0",
        "SELECT kind, arm, subject, state, count(*) FROM tasks WHERE state IN ('done', 'aside') "
        "GROUP BY kind, arm, subject, state",
    ),
}


def assert_totals_are_sums(ledger):
    execute = ledger._database._connection.execute
    for name, queries in SUMS.items():
        kept, summed = ({tuple(map(str, map(whole, row))) for row in execute(q)} for q in queries)
        assert kept == summed, name


def whole(value):
    """PostgreSQL sums integers to decimals."""
    return value if isinstance(value, str) else float(value)


def test_totals_are_the_sums_of_what_is_recorded(ledger, plan):
    for _ in range(25):
        do_one(ledger, plan)
        assert_totals_are_sums(ledger)
    do_all(ledger, plan)
    assert_totals_are_sums(ledger)


def test_totals_count_no_more_what_is_set_aside_and_count_again_what_is_done_again(finished, plan):
    states = finished.queue.task_counts()
    total = finished.progress.training_totals("modular")
    finished.rollbacks.go_back("modular", 1, [Task("train", "modular", "0", 1)])
    assert_totals_are_sums(finished)
    assert finished.queue.task_counts()["train", "modular"] == {"aside": 3, "done": 4, "ready": 1}
    assert finished.progress.training_totals("modular").path_phases == 4
    for path in (1, 2, 3):
        with finished._database.transaction():
            finished._database.change(
                "add_task", **Task("train", "modular", str(path), 1)._asdict(), priority=8
            )
    do_all(finished, plan)
    assert_totals_are_sums(finished)
    assert finished.queue.task_counts() == states
    assert finished.progress.training_totals("modular") == total


def test_a_task_that_is_opened_again_is_not_counted_as_done(ledger, plan):
    claim = do_until(ledger, plan, "outer")
    cause = Task("train", "modular", "0", 0)
    ledger.redos.redo(claim, cause, "an object", "damaged")
    assert_totals_are_sums(ledger)
    assert ledger.queue.task_counts()["train", "modular"] == {"done": 1, "ready": 3}
