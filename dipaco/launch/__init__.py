"""Starting workers and keeping them: the processes of a run, on engines that hold them.

    roles.py       a role's command line, and what it must know on another machine
    devices.py     which devices of a machine are whose
    engine.py      the contract of an engine: start, end, poll, stop groups of processes
    local.py       processes of this machine
    ray.py         actors on a Ray cluster, and `leash.py`, which their processes are on
    replicas.py    serving loops behind Ray Serve, and `path_router.py`, which picks one of them
    supervisor.py  keeps as many workers alive as are wanted, until the run is finished

An engine knows processes and nothing of tasks: whether work is done is in the ledger. So a launcher
that dies costs nothing but the workers that it would have started again. DiPaCo (arXiv 2403.10616)
section 3. May import everything below.
"""
