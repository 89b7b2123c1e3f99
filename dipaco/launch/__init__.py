"""Starting workers and keeping them: the processes of a run, on engines that hold them.

    roles.py       a role's command line
    engine.py      the contract of an engine: start, poll, stop
    local.py       processes of this machine
    supervisor.py  keeps a number of workers alive until the run is finished

An engine knows processes and nothing of tasks: whether work is done is in the ledger. So a launcher
that dies costs nothing but the workers that it would have started again; those that it did start
go on. DiPaCo (arXiv 2403.10616) section 3. May import everything below.
"""
