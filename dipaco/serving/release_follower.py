"""Following a run that is still training: its newer releases, in a separate thread."""

import logging
import threading
from collections.abc import Callable, Sequence

from dipaco.errors import DipacoError
from dipaco.runs.opening import reading
from dipaco.runs.run import Run
from dipaco.serving.models import RETRY_SECONDS, ReleaseHealth, ServedModels, read_all
from dipaco.store.address import Where

_log = logging.getLogger("dipaco")


class ReleaseFollower:
    """Polls a run.

    Args:
      folder: of the run, or its URL. It is opened at each poll, since a connection belongs to one
        thread.
      say: called with a sentence for the operator.
      on_poll: called with the run at each poll, for changes that come without a newer release.
      paths: those whose bytes are verified at the start. None = all.
    """

    def __init__(
        self,
        folder: Where,
        models: ServedModels,
        health: ReleaseHealth,
        say: Callable[[str], None],
        on_poll: Callable[[Run], object],
        paths: Sequence[int] | None,
    ):
        self._folder, self._models, self._health, self._say = folder, models, health, say
        self._on_poll, self._paths = on_poll, paths
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def poll(self) -> bool:
        """Looks for newer releases once. Returns True if the main model has one now."""
        with reading(self._folder) as run:
            self._on_poll(run)
            return self._models.follow(run)

    def verify_current(self) -> None:
        """Reads every byte of the releases that are served."""
        with reading(self._folder) as run:
            for served in self._models.current():
                read_all(run.objects, served.release, self._health, self._paths)

    def start(self, every_seconds: float | None) -> None:
        """Verifies the current release, again until all of it could be looked at, and polls at this
        interval. None = never polls.
        """
        self._thread = threading.Thread(
            target=self._run, args=(every_seconds,), name="release-follower", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, every_seconds: float | None) -> None:
        wait_seconds = RETRY_SECONDS if every_seconds is None else every_seconds
        is_verified = self._try(self.verify_current)
        while not (is_verified and every_seconds is None):
            if self._stopped.wait(wait_seconds):
                return
            is_verified = is_verified or self._try(self.verify_current)
            if every_seconds is not None:
                self._try(self.poll)

    def _try(self, action: Callable[[], object]) -> bool:
        """True if the action came to its end. Otherwise the operator is told the reason."""
        try:
            action()
            return True
        except (DipacoError, OSError) as error:  # such as a busy ledger or a moved folder
            self._say(f"could not read {self._folder}: {error}")
        except Exception as error:  # whatever it is, the release that is served goes on
            _log.error("the newest release could not be looked at", exc_info=error)
            self._say(f"could not look at {self._folder}: {type(error).__name__}: {error}")
        return False
