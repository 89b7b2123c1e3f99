"""Which snapshot of each path went to the bucket last, where that is after its phase was recorded
(`retention.send_snapshots=while_training`): what a lost machine costs is counted from it.

Noted once the bucket has the bytes. A note that is lost makes the cost look higher than it is.
"""

from dipaco.control.database import Database
from dipaco.control.retry import retried

NOTHING = -1  # the arm went back to before it


class NewestSent:
    """Of the paths of one run."""

    def __init__(self, database: Database):
        self._database = database

    @retried
    def note(self, arm: str, path: int, phase: int) -> None:
        """The bucket has a path's snapshot after a phase."""
        with self._database.transaction(is_durable=False):
            self._database.change("change_meta", key=f"{_key(arm)}{path}", value=str(phase))

    def phases(self, arm: str) -> dict[int, int]:
        """Path -> phase, of the paths of an arm that have sent any."""
        sent = {
            int(key.removeprefix(_key(arm))): int(value)
            for key, value in self._database.rows("newest_sent", arm=arm)
        }
        return {path: phase for path, phase in sent.items() if phase != NOTHING}

    def forget(self, arm: str, phase: int) -> None:
        """Inside a transaction: snapshots after this phase and later ones do not count."""
        for path, sent in self.phases(arm).items():
            if sent >= phase:
                key = f"{_key(arm)}{path}"
                self._database.change("change_meta", key=key, value=str(NOTHING))


def _key(arm: str) -> str:
    return f"sent {arm}/"
