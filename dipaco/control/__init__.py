"""The facts of a run, and the tasks that they make due. No JAX, no arrays, no bytes.

A run is remembered in one SQL database, its *ledger*: which modules exist at which phase (with the
digest of their bytes), which contributions arrived, which scores were taken, and which tasks are
ready, claimed or done. `plan` says what a run consists of, `scheduler` is a pure function from a
new fact to the tasks it makes due, `ledger` remembers both in one transaction. There is no planner
process: whoever finishes a task records its facts and thereby puts the tasks that follow. DiPaCo
(arXiv 2403.10616) section 3.

    plan.py        what a run consists of
    tasks.py       the nouns: tasks, claims, facts
    scheduler.py   a new fact -> the tasks it makes due; pure
    queue.py       who works on which task: leases, fencing tokens, backups
    roster.py      who takes part, and how much of their time counted
    quorums.py     modules that step while a path is late, and what each step takes
    ledger.py      facts, and the tasks that follow, in one transaction; what is to be done again
    release.py     what goes out
    database.py    what is asked of a database; sqlite.py and postgresql.py keep it
    places.py      where a run's facts are
    clock.py       what leases are measured by on one host; patience.py waits for a server

Bytes first, then the row: every row about bytes is written after the bytes are durable. A crash
leaves a claim and no facts; the lease ends and the task is claimed again. All SQL is in the `.sql`
files. May import `topology` and `errors`.
"""
