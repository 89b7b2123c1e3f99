"""What a worker, a launcher and the metrics ask costs as much after a thousand phases as after ten.

Counted, not timed: instructions of SQLite's virtual machine, rows that PostgreSQL's scans touch.
"""

import contextlib

import pytest
from support.made_up_facts import facts_of
from support.servers import fresh_schemas

from dipaco.control.ledger import open_ledger
from dipaco.control.members.swarms import GroupStep
from dipaco.control.planning.tasks import PRIORITY, Task
from dipaco.schedule.plan import BASE, Plan, one_path
from dipaco.topology import ModuleId
from tests.control.conftest import GRID, arm, inside_of_this
from tests.control.test_totals import SUMS

PATHS, MODULES = 16, 8
NUMBERS = "WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {last}) "
FACTS = {
    "trained": "(arm, path, phase, name, digest, num_bytes, step, batches, losses, tokens, "
    "seconds, bytes_down, bytes_up, machine) SELECT 'modular', i % {paths}, i / {paths}, "
    "'snapshot', 'd', 8, 1, 'b', '[1.0]', 100, 50.0, 4, 2, 'cpu' FROM n",
    "modules": "(arm, module, phase, name, digest, num_bytes, state_bytes) SELECT 'modular', "
    "'early/000' || (i % {paths}), i / {paths}, 'm' || i, 'd', 8, 16 FROM n",
    "scores": "(arm, path, phase, name, digest, num_bytes, seconds) SELECT 'modular', "
    "i % {paths}, i / {paths}, 's', 'd', 3, 1.0 FROM n",
    "labels": "(arm, path, phase, name, digest, num_bytes, seconds) SELECT 'modular', "
    "i % {paths}, i / {paths}, 'l', 'd', 3, 1.0 FROM n",
    "checks": "(arm, path, phase, loss, best_phase, seconds) SELECT 'modular', "
    "i % {paths}, i / {paths}, 1.0, 0, 1.0 FROM n",
    "contributions": "(arm, module, phase, path, base_digest, name, digest, num_bytes) SELECT "
    "'modular', 'early/000' || (i % 8), i / {paths}, i % {paths}, 'b', 'c', 'd', 8 FROM n",
    "taken": "(arm, module, phase, path, step) SELECT 'modular', 'early/000' || (i % 8), "
    "i / {paths}, i % {paths}, i / {paths} FROM n",
    "tasks": "(kind, arm, subject, phase, priority, state) SELECT 'train', 'modular', "
    "CAST(i % {paths} AS TEXT), i / {paths}, 8, 'done' FROM n",
    # Preempted, each with its machine: they never left.
    "workers": "(name, host, pid, process_id, machine, version, state, epoch, joined, heartbeat, "
    "is_silent) SELECT 'w' || i, 'h', i, CAST(i AS TEXT), 'm', '0', 'here', 'e', 0, 0, 1 FROM n",
}

TOTALS = {
    "path_totals (arm, path, phases, tokens, seconds, bytes_down, bytes_up, snapshot_bytes)": (
        "path_totals"
    ),
    "path_machines (arm, path, machine, phases)": "path_machines",
    "module_totals (arm, module, num_bytes, state_bytes)": "module_totals",
    "settled_tasks (kind, arm, subject, state, number)": "settled_tasks",
}


def fill(ledger, phases):
    """A run that has gone through `phases`; all paths but one are in the next."""
    execute = ledger._database._connection.execute
    with ledger._database.transaction():
        if ledger._database.is_remote:  # triggers would change the same rows a thousand times
            execute("SET LOCAL session_replication_role = replica")
        for table, text in FACTS.items():
            paths = MODULES if table == "modules" else PATHS
            numbers = NUMBERS.format(last=paths * phases - 1)
            columns, select = text.format(paths=paths).split(" SELECT", 1)
            execute(f"INSERT INTO {table} {columns} {numbers} SELECT{select}")
        for columns, name in TOTALS.items() if ledger._database.is_remote else ():
            execute(f"INSERT INTO {columns} {SUMS[name][1]}")
    ledger.queue.give_back_all()
    with ledger._database.transaction():
        ledger._database.change("reopen_tasks")
        for path in range(PATHS - 1):
            task = Task("train", "modular", str(path), phases)
            ledger._database.change("add_task", **task._asdict(), priority=PRIORITY["train"])
    while ledger.queue.claim("another") is not None:
        pass
    if ledger._database.is_remote:
        for table in (*FACTS, *SUMS.keys() - {"scores"}, "claims"):
            execute(f'ANALYZE "{ledger._database._schema}".{table}')  # as a server does by itself


def counted(ledger, ask):
    """What `ask` costs: instructions on SQLite, rows touched on PostgreSQL; and how many
    statements.
    """
    database = ledger._database
    cost, statements = [0], [0]
    execute = database._execute

    def step():
        cost[0] += 1

    def explained(query, values):
        statements[0] += 1
        if database.is_remote and query != "flush":
            import psycopg

            with database._connection.turn() as raw, psycopg.ClientCursor(raw) as cursor:
                text = f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {database.statement(query)}"
                plan = cursor.execute(text, values).fetchone()[0][0]["Plan"]
            cost[0] += sum(rows_touched(plan))
        return execute(query, values)

    database._execute = explained
    if not database.is_remote:
        database._connection.set_progress_handler(step, 1)
    try:
        answer = ask(ledger)
    finally:
        database._execute = execute
        if not database.is_remote:
            database._connection.set_progress_handler(None, 1)
    return cost[0], statements[0], answer


def rows_touched(plan):
    """Of a plan's scans."""
    inner = plan.get("Plans", [])
    if "Scan" in plan["Node Type"]:
        removed = sum(value for name, value in plan.items() if name.startswith("Rows Removed"))
        yield (plan["Actual Rows"] + removed) * plan["Actual Loops"]
    for each in inner:
        yield from rows_touched(each)


QUESTIONS = {
    "a claim where nothing is ready": lambda ledger: ledger.queue.claim("idle"),
    "expired leases": lambda ledger: ledger.reaper.reap(),
    "a late task": lambda ledger: ledger.queue.claim_backup("idle"),
    "unfinished tasks": lambda ledger: ledger.queue.unfinished(),
    "number of tasks": lambda ledger: ledger.queue.task_counts(),
    "totals of an arm": lambda ledger: ledger.progress.training_totals("modular"),
    "tokens": lambda ledger: ledger.progress.tokens_by_arm(),
    "bytes": lambda ledger: ledger.progress.bytes_by_kind(),
    "machines": lambda ledger: ledger.progress.machines(),
    "newest modules": lambda ledger: ledger.progress.newest_modules(),
    "newest phases": lambda ledger: ledger.progress.newest_phases(),
    "phases reached": lambda ledger: ledger.progress.phases_reached("modular", MODULES),
    "whether it is finished": lambda ledger: ledger.queue.is_finished(),
    "kinds of unfinished tasks": lambda ledger: ledger.queue.unfinished_kinds(),
    "delays that are over": lambda ledger: ledger.failures.end_delays(),
    "failures": lambda ledger: ledger.failures.list(),
    "paths that went through a phase": lambda ledger: ledger.facts.trained("modular", 5),
    "scores of a phase": lambda ledger: ledger.facts.num_scored("modular", 5),
    "labels of a phase": lambda ledger: ledger.facts.num_labelled("modular", 5),
    "checks of a phase": lambda ledger: ledger.facts.checked("modular", 5),
    "modules at a phase": lambda ledger: ledger.facts.modules_at("modular", 5),
    "contributions of a phase": lambda ledger: ledger.facts.num_contributions(
        "modular", ModuleId.parse("early/0003"), 5
    ),
    "snapshots to delete": lambda ledger: ledger.retention.superseded_snapshots("modular", 3, 8, 2),
    "late contributions": lambda ledger: ledger.quorums.late("modular"),
    "the newest steps": lambda ledger: ledger.quorums.newest("modular"),
    "a summary": lambda ledger: ledger.meta.work_summary(("train", "outer")),
    "the command": lambda ledger: ledger.meta.command(),
}
SHORT, LONG = 10, 1000


ON_BOTH = ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)]


@pytest.fixture(scope="module", params=ON_BOTH)
def histories(request, tmp_path_factory):
    """Two runs that a test may ask."""
    with two_runs(request, tmp_path_factory) as ledgers:
        yield ledgers


@pytest.fixture(params=ON_BOTH)
def two_to_change(request, tmp_path_factory):
    """Two runs that a test may go on with."""
    with two_runs(request, tmp_path_factory) as ledgers:
        yield ledgers


@contextlib.contextmanager
def two_runs(request, tmp_path_factory):
    """One of ten phases and one of a thousand."""
    with contextlib.ExitStack() as opened:
        ledgers = {}
        for phases in (SHORT, LONG):
            if request.param == "sqlite":
                place = (tmp_path_factory.mktemp("costs") / "ledger.sqlite", "")
            else:
                place = (request.getfixturevalue("postgresql_server").url, next(fresh_schemas))
            ledgers[phases] = opened.enter_context(open_ledger(*place))
            fill(ledgers[phases], phases)
        yield ledgers


def test_a_look_for_an_overdue_task_is_one_statement_however_many_claims_there_are(histories):
    for ledger in histories.values():
        assert len(ledger.queue.held()) == PATHS - 1
        assert counted(ledger, lambda at: at.queue.claim_backup("idle"))[1:] == (1, None)


def test_what_a_worker_asks_of_the_others_does_not_grow_with_their_number(two_to_change):
    costs = []
    for number, ledger in zip((100, 2000), two_to_change.values(), strict=True):
        ledger._database._connection.execute(
            NUMBERS.format(last=number - 1).join(
                ("INSERT INTO workers (name, host, pid, process_id, machine, version, state, ",
                 "SELECT 'm' || i, 'h', i, '', 'm', '0', 'here', 'e', 0, 0, 0 FROM n")
            ).replace("WITH", "epoch, joined, heartbeat, is_silent) WITH")
        )  # fmt: skip
        if ledger._database.is_remote:
            ledger._database._connection.execute(f'ANALYZE "{ledger._database._schema}".workers')
        costs.append(counted(ledger, lambda at: at.reaper.reap("m50"))[0])
    assert costs[1] <= 1.5 * costs[0] + 20, costs


@pytest.mark.parametrize("question", QUESTIONS)
def test_what_it_costs_does_not_depend_on_the_history(histories, question):
    ask = QUESTIONS[question]
    cost = {phases: counted(ledger, ask)[0] for phases, ledger in histories.items()}
    assert cost[LONG] <= 1.5 * cost[SHORT] + 20, cost


PLAN = Plan(
    base=arm(BASE, one_path(("embed", "head")), 2),
    arms=(arm("modular", GRID, 10**6, averaged=True),),
)
COMMITS = (
    Task("train", "modular", "1", 2000),
    Task("outer", "modular", "early/0001", 2000),
    Task("score", "modular", "1", 2000),
)


def test_what_a_commit_costs_does_not_depend_on_the_history(two_to_change):
    costs = {}
    for phases, ledger in two_to_change.items():
        with ledger._database.transaction():
            for task in COMMITS:
                ledger._database.change("add_task", **task._asdict(), priority=-1)
        for _ in COMMITS:
            claim = ledger.queue.claim("w")
            costs[phases, claim.task] = cost_of_commit(ledger, claim)
    for task in COMMITS:
        assert 0 < costs[LONG, task] <= 1.5 * costs[SHORT, task] + 20, costs


def cost_of_commit(ledger, claim):
    """Instructions on SQLite; on PostgreSQL the rows that were read, by triggers too."""
    facts = facts_of(PLAN, claim.task)
    return cost_of_change(ledger, lambda at: at.commit.finish(PLAN, claim, facts))


def cost_of_change(ledger, change):
    """Likewise, of whatever it does to the ledger."""
    database = ledger._database
    if not database.is_remote:
        return counted(ledger, change)[0]

    def rows_read() -> int:
        """Of this transaction, and of earlier ones that the server has not added up yet."""
        ((read,),) = database._connection.execute(
            "SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)) "
            "FROM pg_stat_xact_user_tables"
        )
        return int(read)

    with database.transaction(), inside_of_this(database):
        before = rows_read()
        change(ledger)
        return rows_read() - before


FEW, MANY = 8, 256


def test_what_a_step_of_a_swarm_costs_is_in_proportion_to_its_volunteers(place):
    def costs_with(volunteers):
        """Of the step when it is taken, and when it is taken again."""
        blocks = {f"v{number}/1": [number] for number in range(volunteers)}
        step = GroupStep(0, "s", 1.0, 9.0, 1.0, blocks)
        of = ("modular", volunteers, step)
        return [cost_of_change(ledger, lambda at: at.swarms.put_step(*of)) for _ in range(2)]

    with open_ledger(*place) as ledger:
        costs = [costs_with(FEW), costs_with(MANY)]
    for few, many in zip(*costs, strict=True):
        assert many <= 1.5 * MANY / FEW * few + 20, costs
