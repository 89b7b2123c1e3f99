"""Workers that are members of a run in name alone."""


def join(ledger, name, process_id=None, **more):
    """It runs on this host, as a process of its own name unless another is given."""
    of = {"host": "here", "pid": 1, "machine": "cpu", "version": "0"} | more
    return ledger.members.join(name, process_id=process_id or name, **of)
