"""SIGTERM and Ctrl-C call a function while a block runs."""

import contextlib
import signal
from collections.abc import Callable, Generator


@contextlib.contextmanager
def on_sigterm(act: Callable[[], None], *, on_ctrl_c: bool = False) -> Generator[None]:
    """Inside the block SIGTERM calls `act`; afterwards the previous handler is restored. With
    `on_ctrl_c` the first Ctrl-C calls `act` too, and the second interrupts.
    """
    before = signal.signal(signal.SIGTERM, lambda *_: act())
    interrupt = signal.getsignal(signal.SIGINT)

    def interrupted(*_: object) -> None:
        signal.signal(signal.SIGINT, interrupt)
        act()

    if on_ctrl_c:
        signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        if on_ctrl_c:
            signal.signal(signal.SIGINT, interrupt)
