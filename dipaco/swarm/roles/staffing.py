"""Decides whether volunteers or plain workers have a path, as one backbone sees it."""

import time
from collections.abc import Callable

from dipaco.swarm.planning.volunteers_seen import VolunteersSeen
from dipaco.swarm.roles.backbone_ledger import BackboneLedger
from dipaco.swarm.roles.leader import Leader

UNSTAFFED_LOOKS = 3  # looks at the ledger before a path without volunteers is left


class Staffing:
    """Leaves a path to plain workers when there are no volunteers, and takes it back when some
    come. A backbone that follows does the same as the leading one.

    Args:
      leader: the leader object of this backbone, whether it leads or not.
      ledger: shows the result to other processes.
      say: called with a sentence when it changes.
    """

    def __init__(self, leader: Leader, ledger: BackboneLedger, say: Callable[[str], None]):
        self._leader, self._ledger, self._say = leader, ledger, say
        self._seen = VolunteersSeen()
        self._is_recorded, self._unstaffed_looks = False, 0
        self.is_staffed = False  # true if volunteers have the path

    def look(self, *, may_lead: bool) -> bool:
        """Looks once. Returns true if `is_staffed` has changed."""
        is_staffed = self._seen.look(self._num_volunteers(), time.monotonic()) and may_lead
        if is_staffed != self._is_recorded:
            self._ledger.put_backbone(is_staffed=is_staffed)
            self._is_recorded = is_staffed
        # A phase is left only when all followers have seen it. Otherwise one of them would claim
        # it.
        self._unstaffed_looks = 0 if is_staffed else self._unstaffed_looks + 1
        is_staffed = self._unstaffed_looks < UNSTAFFED_LOOKS and (is_staffed or self.is_staffed)
        if is_staffed == self.is_staffed:
            return False
        self.is_staffed = is_staffed
        if is_staffed:
            self._say("volunteers are here: the path is theirs")
        else:
            self._say("no volunteers: the path is left to plain workers until some come")
        return True

    def _num_volunteers(self) -> int:
        """Number of volunteers known to this backbone. At least one if the leader reports any."""
        num_volunteers = self._leader.num_volunteers()
        if not self._leader.is_leading:
            if there := self._ledger.is_staffed_by_leader():
                return max(num_volunteers, 1)
            if there is False:
                self._seen.forget()
        return num_volunteers
