"""SIGTERM and Ctrl-C call a function while a block runs."""

import contextlib
import signal
from collections.abc import Callable, Generator

from dipaco import stopping


@contextlib.contextmanager
def on_sigterm(act: Callable[[], None], *, on_ctrl_c: bool = False) -> Generator[None]:
    """Inside the block SIGTERM calls `act`; afterwards the previous handler is restored. With
    `on_ctrl_c` the first Ctrl-C calls `act` too, and the second interrupts. A process that was told
    to end waits some seconds at most for a database or a store that is away.
    """

    def told(*_: object) -> None:
        stopping.stop_waiting()
        act()

    def interrupted(*_: object) -> None:
        signal.signal(signal.SIGINT, interrupt)
        told()

    stopping.wait_again()
    before = signal.signal(signal.SIGTERM, told)
    interrupt = signal.getsignal(signal.SIGINT)
    if on_ctrl_c:
        signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        if on_ctrl_c:
            signal.signal(signal.SIGINT, interrupt)
