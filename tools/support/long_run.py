"""The ledger of a run of 256 paths and 289 modules that has any number of phases behind it: all
paths but one are claimed, nothing is ready, and workers look for something to do.
"""

from dipaco.control.ledger import Ledger
from dipaco.control.planning.tasks import Claim

PATHS = 256
SHARED = 33  # modules of levels that paths share; the others are each a path's own


def grow(ledger: Ledger, phases: int, workers: int = PATHS) -> list[Claim]:
    """Fills a new ledger; the claims of 255 workers.

    Args:
      ledger: on either database.
      phases: that are done; in the next, 255 paths are claimed and one is waiting.
      workers: that are here; the first 255 hold the claims.
    """
    execute = ledger._database._connection.execute  # ty: ignore[missing-attribute]

    def add(table: str, columns: str, rows: int, values: str) -> None:
        execute(
            f"INSERT INTO {table} ({columns}) WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL "
            f"SELECT i + 1 FROM n WHERE i < {rows - 1}) SELECT {values} FROM n"
        )

    def add_tasks(kind: str, rows: int, phase: int, priority: int, state: str) -> None:
        columns = "kind, arm, subject, phase, priority, state"
        values = f"'{kind}', 'modular', CAST(i AS TEXT), {phase}, {priority}, '{state}'"
        add("tasks", columns, rows, values)

    modules = PATHS + SHARED
    trained = "arm, path, phase, name, digest, num_bytes, step, batches, losses, tokens, seconds, "
    for phase in range(phases):
        add_tasks("train", PATHS, phase, 8, "done")
        add_tasks("outer", modules, phase, 3, "done")
        values = f"'modular', i, {phase}, '', '', 8, 1, '', '[1.0]', 100, 600.0, 8, 8, ''"
        add("trained", f"{trained} bytes_down, bytes_up, machine", PATHS, values)
        values = f"'modular', CAST(i AS TEXT), {phase}, '', '', 8"
        add("modules", "arm, module, phase, name, digest, num_bytes", modules, values)
    add_tasks("train", PATHS, phases, 8, "ready")
    here = "name, host, pid, life, machine, version, state, epoch, joined, heartbeat"
    values = "'worker ' || i, 'host', i, CAST(i AS TEXT), 'm', '0', 'here', 'e', 0, 0"
    add("workers", here, workers, values)
    claims = [ledger.queue.claim(f"worker {number}") for number in range(PATHS - 1)]
    execute("UPDATE tasks SET state = 'waiting' WHERE state = 'ready'")
    if ledger._database.is_remote:
        execute("VACUUM ANALYZE")  # as a server does by itself, after a minute
    return [claim for claim in claims if claim is not None]
