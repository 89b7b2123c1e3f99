"""Workers of a run that are names in its ledger, without a process."""


def process_of(name):
    """One of another machine."""
    return f"another-boot - 1 {name}"


def join(ledger, name="w", *, is_taken=False, **more):
    """Takes part under a name, unless it is taken. What is not given does not matter."""
    of = {"host": "there", "pid": 1, "process_id": process_of(name), "machine": "one"}
    assert ledger.members.join(name, **of | {"version": "0"} | more) != is_taken
