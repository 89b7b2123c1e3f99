"""Starting workers and keeping them alive: the processes of a run, on engines that hold them.

    process_spec.py  the command line of a process, and the variables it needs on another machine
    devices.py       which devices of a machine belong to which worker; limits of one process
    equal_bits.py    the flag that makes a GPU repeat its bits
    engine.py        the contract of an engine: start, end, poll and stop workers
    local.py         processes of this machine
    ray.py           actors on a Ray cluster; `parent_death.py` ends their processes with them
    supervisor.py    keeps the wanted number of workers alive until the run is finished
    launcher_name.py the name of a launcher, given or made up
    event_tailer.py  prints the events that workers write into the run's event file

Nouns: *worker* (one process, or one on each of several hosts that train a path together), *worker
group* (workers with the same command line), *engine* (it holds workers).

An engine knows processes and no tasks. Only the ledger knows whether work is done. A launcher that
dies costs only the workers that it would have restarted. DiPaCo (arXiv 2403.10616) section 3. May
import everything below. Ray is imported in `ray.py` only.
"""
