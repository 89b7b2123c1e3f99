"""Decides whether volunteers or plain workers have a path, as one backbone sees it."""

import time
from collections.abc import Callable

from dipaco.swarm.planning.hands import Hands
from dipaco.swarm.roles.backbone_ledger import BackboneLedger
from dipaco.swarm.roles.leader import Leader

UNMANNED_LOOKS = 3  # looks at the ledger before a path without volunteers is left


class Manning:
    """Leaves a path to plain workers when there are no volunteers, and takes it back when some
    come. A backbone that follows does the same as the leading one.

    Args:
      leader: the leader object of this backbone, whether it leads or not.
      ledger: shows the result to other processes.
      say: called with a sentence when it changes.
    """

    def __init__(self, leader: Leader, ledger: BackboneLedger, say: Callable[[str], None]):
        self._leader, self._ledger, self._say = leader, ledger, say
        self._hands = Hands()
        self._is_recorded, self._unmanned_looks = False, 0
        self.is_manned = False  # true if volunteers have the path

    def look(self, *, may_lead: bool) -> bool:
        """Looks once. Returns true if `is_manned` has changed."""
        is_manned = self._hands.look(self._num_hands(), time.monotonic()) and may_lead
        if is_manned != self._is_recorded:
            self._ledger.put_backbone(is_manned=is_manned)
            self._is_recorded = is_manned
        # A phase is left only when all followers have seen it. Otherwise one of them would claim
        # it.
        self._unmanned_looks = 0 if is_manned else self._unmanned_looks + 1
        is_manned = self._unmanned_looks < UNMANNED_LOOKS and (is_manned or self.is_manned)
        if is_manned == self.is_manned:
            return False
        self.is_manned = is_manned
        if is_manned:
            self._say("volunteers are here: the path is theirs")
        else:
            self._say("no volunteers: the path is left to plain workers until some come")
        return True

    def _num_hands(self) -> int:
        """Number of volunteers known to this backbone. At least one if the leader reports any."""
        num_hands = self._leader.num_hands()
        if not self._leader.is_leading:
            if there := self._ledger.is_manned_by_leader():
                return max(num_hands, 1)
            if there is False:
                self._hands.forget()
        return num_hands
