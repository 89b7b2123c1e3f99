"""Workers: processes that do the tasks of a run, on one machine or on many.

`process` opens a run and works on it: `registration` under a name, `heartbeat` to renew leases,
`claiming` to pick a task, `loop` to execute it and record. `execution` maps each kind of task to
its function in `tasks/`, `runners` take the steps of paths, and `hosts` are the processes of a
worker on several machines. `recovery` has lost objects made again, `keeping` deletes superseded
ones, `monitor` reports silent workers, `rollback` goes back to an earlier phase, `cleaning` gives
that up, `origin` is what a new run starts from.

Nouns: a *worker* holds a *claim* on a task while its lease is renewed. Executing a task writes
objects and returns *facts*. A worker that must stop inside a phase saves a *partial snapshot*.

All work is deterministic: a task done twice gives the same bytes, and its facts count once. A
laptop is one process until the run is finished, and a cluster does the same tasks. Tasks bring the
store and the mathematics (`inner`, `outer`) together. The room imports neither `serving` nor
`swarm`, which stand beside it. DiPaCo (arXiv 2403.10616) section 3.
"""
