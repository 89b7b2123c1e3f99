"""Finds the leader of a group among its backbones."""

import asyncio
import random
import socket
import time
from collections.abc import Callable

from dipaco.swarm.errors import BadMessage, SwarmUnreachable, TlsRefused
from dipaco.swarm.network.addresses import parse
from dipaco.swarm.network.credentials import BACKBONE, VOLUNTEER, printable
from dipaco.swarm.network.messages import GroupInfo, JoinRequest, SettingsRequest
from dipaco.swarm.network.wire import Wire

GIVE_UP_SECONDS = 600.0  # a group is given up if no backbone answers for so long
QUIET_SECONDS = 5.0  # silence before it is reported
ASK_OTHERS_SECONDS, OTHERS_ASKED = 2.0, 3  # silence before volunteers are asked, so many in turn


class LeaderConnection:
    """The address of the leader."""

    def __init__(self, wire: Wire, backbones: tuple[str, ...], say: Callable[[str], None]):
        self._wire, self._say = wire, say
        self._backbones = list(backbones)
        self._is_known = False  # a backbone has replied
        self.address = ""

    async def find(
        self, method: str, body: JoinRequest | SettingsRequest, *, needs_leader: bool = True
    ) -> GroupInfo:
        """Asks one backbone after the other, until one replies that it leads. It waits as long as
        any of them replies: the path may be at its outer step, or a plain worker's. The first reply
        is enough if `needs_leader` is False, or if it says that the run is over.

        Raises:
          SwarmRefuses: the refusal is final.
          TlsRefused, MessageRefused: the only known address is no backbone's of this run.
          SwarmUnreachable: no backbone has replied for `GIVE_UP_SECONDS`.
        """
        started = replied = time.monotonic()
        problem, said, answering = "", set(), ""
        while (silent := time.monotonic() - replied) < GIVE_UP_SECONDS:
            if silent > QUIET_SECONDS and "silent" not in said:
                said.add("silent")
                where, left = ", ".join(self._backbones), (GIVE_UP_SECONDS - silent) / 60
                self._say(f"no answer from {where} yet ({problem}); trying for {left:.0f} min")
            elif time.monotonic() - started > QUIET_SECONDS and answering and not said:
                said.add("waits")
                self._say(f"{answering} answers; waiting until the path is given to volunteers")
            for address in list(self._backbones):
                if address == self._wire.address:
                    continue
                try:
                    info, _ = await self._wire.ask(
                        address, method, body, GroupInfo, within_seconds=20.0, from_backbone=True
                    )
                except (OSError, TimeoutError, BadMessage) as error:
                    is_only = len(self._backbones) == 1 and not (
                        self._is_known or self._wire.book.records
                    )
                    if is_only and isinstance(error, TlsRefused):
                        raise  # another attempt would meet the same machine
                    problem = _problem_of(error, address)
                    continue
                replied, answering = time.monotonic(), address
                self._is_known = True
                self.add_backbones(info.backbones)
                if info.leader or info.end or not needs_leader:
                    self.address = address
                    return info
            if not answering or time.monotonic() - replied > ASK_OTHERS_SECONDS:
                await self._ask_others()
            await asyncio.sleep(random.uniform(0.2, 0.6))
        raise SwarmUnreachable(addresses=", ".join(self._backbones), problem=problem)

    async def _ask_others(self) -> None:
        """Asks some volunteers where backbones are now."""
        others = self._wire.book.addresses(VOLUNTEER)
        for address in random.sample(others, min(len(others), OTHERS_ASKED)):
            if address != self._wire.address:
                await self._wire.exchange_records(address)
        self.add_backbones(self._wire.book.addresses(BACKBONE))

    def add_backbones(self, addresses: tuple[str, ...]) -> None:
        for address in addresses:
            if address not in self._backbones:
                self._backbones.append(address)


def _problem_of(error: Exception, address: str) -> str:
    if isinstance(error, socket.gaierror):
        return f"this machine finds no address for {printable(parse(address).host)}"
    return printable(str(error)) or type(error).__name__
