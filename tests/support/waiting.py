"""What tests wait for is a fact, and no number of seconds."""

import time


def until(is_so, seconds=60.0, said="it has not come"):
    """The first true answer. Fails with `said`, a text or what makes one, after so many seconds."""
    deadline = time.monotonic() + seconds
    while not (found := is_so()):
        assert time.monotonic() < deadline, said() if callable(said) else said
        time.sleep(0.02)
    return found
