"""The facts of a run, and the tasks that they make due. No JAX, no arrays, no bytes.

A run is recorded in one SQL database, its *ledger*: which modules exist at which phase (with the
digest of their bytes), which contributions and scores are in, and which tasks are ready, claimed or
done. A worker that finishes a task commits its facts and, in the same transaction, the tasks that
they make due; so there is no planner process. DiPaCo (arXiv 2403.10616) section 3.

    ledger.py    the parts below, on one database
    planning/    tasks and facts as values; a new fact -> the tasks that it makes due
    claims/      which worker holds which task; failures, silent workers, history
    facts/       recorded facts: commits, quorums, tasks done again, progress
    members/     workers and volunteers that take part, and the run's command
    keeping/     what may be deleted; earlier phases, and no way back
    database/    SQLite and PostgreSQL behind one contract; queries and tables
    process_id.py   a process, told from any other on any machine
    clock.py     what leases are measured by on one host
    names.py     names that users give to workers, launchers and volunteers

Bytes first, then the row: every row about bytes is written after the bytes are durable. A crash
leaves a claim and no facts. The lease expires and the task is claimed again. The room's
SQL is in `database`. May import `schedule`, `topology`, and helpers.
"""
