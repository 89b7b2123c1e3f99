"""Workers of a run that are names in its ledger, without a process."""


def process_of(name):
    """One of another machine."""
    return f"another-boot - 1 {name}"


def join(ledger, name="w", **more):
    """Takes part under a name. What is not given does not matter."""
    of = {"host": "there", "pid": 1, "process_id": process_of(name), "machine": "one"}
    return ledger.members.join(name, **of | {"version": "0"} | more)
