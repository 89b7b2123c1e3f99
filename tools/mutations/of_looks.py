"""Mutants of repeated questions, which cost little and are counted rightly."""

from mutations.mutant import Mutant

AT_ONCE = "tests/control/test_at_once.py"
COSTS = "tests/control/test_costs.py"
LOOP = "tests/workers/test_loop.py"
CLAIMING = "dipaco/workers/claiming.py"
MEMBERS = "tests/control/test_members.py"
QUEUE = "tests/control/test_queue.py"
TOTALS = "tests/control/test_totals.py"
QUERIES = "dipaco/control/database/queries.sql"
TABLES = "dipaco/control/database/schema/tables.sql"
SERVER = "dipaco/control/database/schema/postgresql.sql"

MUTANTS = (
    Mutant(
        name="looks-take-the-lock",
        file="dipaco/control/claims/queue.py",
        old='        if database.one("next_task", **values, worker=worker) is None:\n',
        new="        if False:\n",
        breaks="an idle worker keeps nobody waiting who has something to record",
        tests=(f"{QUEUE}::test_a_look_that_finds_nothing_takes_no_lock",),
    ),
    Mutant(
        name="heartbeats-read-who-was-preempted",
        file=TABLES,
        old="workers_heard ON workers (name) WHERE state = 'here' AND is_silent = 0;\n",
        new="workers_heard ON workers (name);\n",
        breaks="a heartbeat costs the same after thousands of preemptions",
        tests=(f"{COSTS}::test_what_it_costs_does_not_depend_on_the_history",),
    ),
    Mutant(
        name="preempted-workers-are-here",
        file="dipaco/control/members/members.py",
        old='return "silent" if self.state == "here" and self.is_silent else self.state\n',
        new="return self.state\n",
        breaks="a worker that was preempted does not count as here for ever",
        tests=(MEMBERS,),
    ),
    Mutant(
        name="looks-read-what-is-finished",
        file=QUERIES,
        old="FROM claims c CROSS JOIN tasks t\n",
        new="FROM tasks t CROSS JOIN claims c\n",
        breaks="a look for overdue tasks costs the same after a thousand phases",
        tests=(f"{COSTS}::test_what_it_costs_does_not_depend_on_the_history",),
    ),
    Mutant(
        name="commits-read-what-is-finished",
        file=TABLES,
        old="  PRIMARY KEY (arm, phase, module)\n",
        new="  PRIMARY KEY (arm, module, phase)\n",
        breaks="a commit costs the same after a thousand phases",
        tests=(f"{COSTS}::test_what_a_commit_costs_does_not_depend_on_the_history",),
    ),
    Mutant(
        name="overdue-tasks-looked-for-at-every-look",
        file=CLAIMING,
        old='if claim is None and "train" in self._kinds and self._overdue_tasks.is_due():\n',
        new='if claim is None and "train" in self._kinds:\n',
        breaks="an idle worker looks for overdue tasks once a lease",
        tests=(LOOP,),
    ),
    Mutant(
        name="left-tasks-wait",
        file=CLAIMING,
        old="        reaped = self._reap()\n",
        new="        reaped = not has_ready and self._reap()\n",
        breaks="what a silent worker left goes first, and does not wait until nothing else is due",
        tests=(f"{LOOP}::test_a_worker_first_takes_up_what_a_silent_one_left",),
    ),
    Mutant(
        name="late-task-not-locked",
        file=QUERIES,
        old="AND state = 'claimed' FOR UPDATE SKIP LOCKED;\n",
        new="AND state = 'claimed';\n",
        breaks="of many that look at once for a late task on PostgreSQL, one gets it",
        tests=(
            f"{AT_ONCE}::test_of_many_that_look_at_once_one_gets_the_backup_of_an_overdue_task",
        ),
    ),
    Mutant(
        name="backup-of-a-finished-task",
        file=SERVER,
        old="meanwhile.\n    DELETE FROM claims WHERE task_id = held_task RETURNING",
        new="meanwhile.\n    DELETE FROM claims WHERE FALSE RETURNING",
        breaks="a task that is finished while it gets a backup leaves no claim",
        tests=(f"{AT_ONCE}::test_a_task_that_is_finished_while_it_gets_a_backup_leaves_no_claim",),
    ),
    Mutant(
        name="totals-keep-what-is-set-aside",
        file=TABLES,
        old="    phases = phases - 1, tokens = tokens - old.tokens,",
        new="    phases = phases - 1,",
        breaks="what a run went back from counts no more",
        tests=(TOTALS,),
    ),
    Mutant(
        name="totals-keep-redone-tasks",
        file=TABLES,
        old="  UPDATE settled_tasks SET number = number - 1\n",
        new="  UPDATE settled_tasks SET number = number - 0\n",
        breaks="a task that is opened again is not counted as done",
        tests=(TOTALS,),
    ),
    Mutant(
        name="earlier-lives-forgotten",
        file=QUERIES,
        old="  earlier_seconds = workers.earlier_seconds + workers.heartbeat - workers.joined,\n",
        new="  earlier_seconds = 0,\n",
        breaks="a worker that comes back and does nothing takes less part, not all",
        tests=(MEMBERS,),
    ),
    Mutant(
        name="monitor-blind-after-a-hundred",
        file="dipaco/workers/monitor.py",
        old="        self._refusals = set(refusals)\n",
        new="",
        breaks="the monitor reports every refusal once, however many there are",
        tests=("tests/workers/test_monitor.py",),
    ),
)
