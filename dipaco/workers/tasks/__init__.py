"""The kinds of task. `train` is also `pretrain`, `train_synchronous` is a `train` task of an arm
whose paths step together, `score` is also `check`, `alternation` has `label`, and `features` are
the slices of `route`.

Each is a function of a run and a claim that returns the facts to record. It writes objects, and
records nothing. `workers.execution.execute` has the table of kinds.

A new kind is a file here, and:

    control/planning/tasks.py       `Kind` and `PRIORITY`
    control/planning/scheduler.py   `AFTER`: which facts make it due, and what its own make due
    control/database/schema         its name in the CHECK of `tasks.kind`
    control/facts/redos.py          `maker_of`: it makes its objects again when they are lost
    control/database/queries.sql    `aside_tasks`, for a rollback
    control/keeping/rollback.py     `ASIDE`: the tables of its facts
    workers/execution.py            its line in `execute`
    observe/fact_events.py          the events of its facts
    cli/roles.py                    which verbs do it
    runs/reading/status.py          its place in `STAGE`
    tests/system/test_crashes.py    kills of it in `FAULTS`
"""
