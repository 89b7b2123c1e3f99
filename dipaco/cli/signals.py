"""What SIGTERM, and perhaps Ctrl-C, mean while something goes on."""

import contextlib
import signal
from collections.abc import Callable, Generator


@contextlib.contextmanager
def on_sigterm(act: Callable[[], None], *, on_ctrl_c: bool = False) -> Generator[None]:
    """SIGTERM does this inside, and afterwards what it did before. With `on_ctrl_c` so does the
    first Ctrl-C; the second interrupts.
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
