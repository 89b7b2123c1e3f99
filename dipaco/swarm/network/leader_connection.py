"""Finds the leader of a group among its backbones."""

import asyncio
import random
import time
from collections.abc import Callable

from dipaco.swarm.errors import BadMessage, SwarmUnreachable, TlsRefused
from dipaco.swarm.network.credentials import printable
from dipaco.swarm.network.messages import GroupInfo, JoinRequest, SettingsRequest
from dipaco.swarm.network.wire import Wire

GIVE_UP_SECONDS = 600.0  # with a group none of whose backbones answers
QUIET_SECONDS = 5.0  # before that is said


class LeaderConnection:
    """Where the leader is.

    Args:
      wire: with a transport.
      backbones: addresses to begin with; replies bring more.
      say: called with a sentence when there is no answer for some time.
    """

    def __init__(self, wire: Wire, backbones: tuple[str, ...], say: Callable[[str], None]):
        self._wire, self._say = wire, say
        self._backbones = list(backbones)
        self._is_known = False  # one has replied
        self.address = ""

    async def find(self, method: str, body: JoinRequest | SettingsRequest) -> GroupInfo:
        """Asks one backbone after the other, until one replies that it leads. Waits for that as
        long as one of them replies at all: the path may be at its outer step, or in the hands of a
        plain worker that gives it up.

        Raises:
          SwarmRefuses: for good.
          TlsRefused: the only backbone that is known is not the one that its address names, and was
            never reached.
          SwarmUnreachable: no backbone has replied for `GIVE_UP_SECONDS`.
        """
        started = replied = time.monotonic()
        problem, said = "", set()
        while (silent := time.monotonic() - replied) < GIVE_UP_SECONDS:
            where = ", ".join(self._backbones)
            if silent > QUIET_SECONDS and "silent" not in said:
                said.add("silent")
                minutes = (GIVE_UP_SECONDS - silent) / 60
                self._say(f"no answer from {where} yet ({problem}); trying for {minutes:.0f} min")
            elif time.monotonic() - started > QUIET_SECONDS and not said:
                said.add("waits")
                self._say(f"{where} answers; waiting until the path is given to volunteers")
            for address in list(self._backbones):
                if address == self._wire.address:
                    continue
                try:
                    info, _ = await self._wire.ask(
                        address, method, body, GroupInfo, within_seconds=20.0, from_backbone=True
                    )
                except (OSError, TimeoutError, BadMessage) as error:
                    is_only = len(self._backbones) == 1 and not self._is_known
                    if is_only and isinstance(error, TlsRefused):
                        raise  # trying it again would meet the same machine
                    problem = printable(str(error)) or type(error).__name__
                    continue
                replied = time.monotonic()
                self._is_known = True
                self.add_backbones(info.backbones)
                if info.leader:
                    self.address = address
                    return info
            await asyncio.sleep(random.uniform(0.2, 0.6))
        raise SwarmUnreachable(addresses=", ".join(self._backbones), problem=problem)

    def add_backbones(self, addresses: tuple[str, ...]) -> None:
        for address in addresses:
            if address not in self._backbones:
                self._backbones.append(address)
