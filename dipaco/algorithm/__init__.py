"""The algorithm in one process and in memory. Every other way of running is compared with it.

- `algorithm1`: DiPaCo's Algorithm 1 as published, and nothing else. Read this first.
- `variants`: the same loop with everything that a run may switch on: path sampling, codecs, late
  contributions, alternations, inner steps alone. With everything off it gives the bits of
  `algorithm1`.
- `synchronous`: gradients averaged per module at every step (section 4.5).

No files, no database, no clock. No task uses this room: `tests/workers` shows that runs through
tasks, ledger and store end with the same bits. `workers/replay.py` runs it to check what volunteers
made (`dipaco swarm verify`). The room imports `topology`, `schedule` and `outer`.
"""
