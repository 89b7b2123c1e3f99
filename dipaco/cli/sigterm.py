"""What SIGTERM means while something goes on."""

import contextlib
import signal
from collections.abc import Callable, Generator


@contextlib.contextmanager
def on_sigterm(act: Callable[[], None]) -> Generator[None]:
    """SIGTERM does this inside, and afterwards what it did before."""
    before = signal.signal(signal.SIGTERM, lambda *_: act())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
