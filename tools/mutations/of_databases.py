"""Databases: leases without a clock, one connection a process, whose turn it is in a file."""

from mutations.mutant import Mutant

LEASE_CLOCK = "tests/control/test_lease_clock.py"
ONE_CONNECTION = "tests/control/test_one_connection.py"

MUTANTS = (
    Mutant(
        name="commits-beside-its-successor",
        file="dipaco/control/database/sqlite.py",
        old="                    host.check()\n",
        new="                    pass\n",
        breaks="a host that was suspended inside a transaction, and replaced, commits nothing",
        tests=("tests/control/test_host_mark.py",),
    ),
    Mutant(
        name="reopened-under-a-backup",
        file="dipaco/control/claims/queue.py",
        old='    database.rows("lock_given_up")\n    return database',
        new="    return database",
        breaks="a task that is given up while it gets a backup is not given to a third worker",
        tests=("tests/control/test_at_once.py",),
    ),
    Mutant(
        name="who-is-to-end-waits-on",
        file="dipaco/stopping.py",
        old="        stop_waiting()\n",
        new="",
        breaks="a process that is told to end does not wait for a database that is away",
        tests=("tests/workers/test_process.py",),
    ),
    Mutant(
        name="standby-is-asked-again",
        file="dipaco/control/database/server_connection.py",
        old="                self._held.close()\n",
        new="                pass\n",
        breaks="after a failover the new primary is looked for",
        tests=("tests/control/test_one_connection.py",),
    ),
    Mutant(
        name="renewals-not-counted",
        file="dipaco/control/database/queries.sql",
        old="UPDATE claims SET renewals = renewals + 1,",
        new="UPDATE claims SET renewals = renewals,",
        breaks="who looks sees that a claim is renewed: else every live lease ends",
        tests=(LEASE_CLOCK,),
    ),
    Mutant(
        name="silent-backbones-count",
        file="dipaco/control/claims/silent_workers.py",
        old="        silent = self._workers_seen.over(workers)\n",
        new="        silent: list[str] = []\n",
        breaks="a path whose backbone is dead is left to the others",
        tests=(LEASE_CLOCK,),
    ),
    Mutant(
        name="two-connections-a-worker",
        file="dipaco/control/database/postgresql.py",
        old="        return PostgreSQL(self._url, self._schema, beside=self._connection)\n",
        new="        return PostgreSQL(self._url, self._schema)\n",
        breaks="a server with 100 connections takes about 90 workers",
        tests=(f"{ONE_CONNECTION}::test_two_threads_of_a_process_use_one_connection_in_turn",),
    ),
    Mutant(
        name="renewals-wait-for-statements",
        file="dipaco/control/database/postgresql.py",
        old="PATIENCE_SECONDS = 1.0 ",
        new="PATIENCE_SECONDS = -1.0 ",
        breaks="a renewal does not wait behind a long statement of its own process",
        tests=(ONE_CONNECTION,),
    ),
    Mutant(
        name="prepared-on-the-server",
        file="dipaco/control/database/server_connection.py",
        old="prepare_threshold=None",
        new="prepare_threshold=0",
        breaks="a pooler may give each transaction to another connection",
        tests=("tests/control/test_queue.py",),
    ),
    Mutant(
        name="turn-kept-by-who-gave-up",
        file="dipaco/control/database/write_lock.py",
        old="        if self._has_given_up:\n            self._opened.close()\n",
        new="        if self._has_given_up:\n            pass\n",
        breaks="who has waited too long for its turn lets go of it when it comes",
        tests=("tests/control/test_write_lock.py",),
    ),
)
