"""The facts of a run, and the tasks that they make due. No JAX, no arrays, no bytes.

A run is recorded in one SQL database, its *ledger*: which modules exist at which phase (with the
digest of their bytes), which contributions and scores are in, and which tasks are ready, claimed or
done. A worker that finishes a task commits its facts and, in the same transaction, the tasks that
they make due; so there is no planner process. DiPaCo (arXiv 2403.10616) section 3.

    tasks.py       the nouns: tasks, claims, facts
    scheduler.py   a new fact -> the tasks it makes due; pure
    ledger.py      the parts below, on one database
    commit.py      finishing a task: its facts, and the tasks that follow (recording.py: the rows)
    facts.py       what is recorded, read; the scheduler's frontier
    queue.py       which worker holds which task: leases, fencing tokens, backups; reaping.py ends
                   those of silent workers
    quorums.py     outer steps that need not wait for every path
    failures.py    attempts at tasks that went wrong: counted, waited for, given up
    redos.py       tasks done again because their result is lost (reproducing.py: what stands);
                   rollback.py: earlier phases; cleaning.py: no way back
    progress.py    how far a run is; retention.py: which objects may be deleted
    meta.py        the run as a whole: its values, command, desired workers, version
    history.py     what happened, in order: attempts at tasks, and what became of workers
    members.py     which workers take part (presence.py: as this machine sees them); names.py:
                   how they may be called; life.py: a process, told from any other; swarms.py:
                   volunteers
    release.py     a consistent set that goes out
    opening.py     a database by where it is (database_location.py; password.py: of its URL)
    database.py    the contract of sqlite.py and postgresql.py; schema/ has the tables
    host_mark.py   the one host that works on a file of SQLite
    clock.py       what leases are measured by on one host; retry.py waits for a server

Bytes first, then the row: every row about bytes is written after the bytes are durable. A crash
leaves a claim and no facts; the lease expires and the task is claimed again. All SQL is in the
`.sql` files. May import `topology`, `receipt`, `files` and `errors`.
"""
