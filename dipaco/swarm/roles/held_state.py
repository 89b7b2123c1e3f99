"""Fetches a new leader's first state, if another backbone holds a newer one than was saved."""

import contextlib
from collections.abc import Callable, Collection

from dipaco.swarm.network.messages import HeldStateRequest, StateManifest
from dipaco.swarm.network.wire import PEER_ERRORS, Wire
from dipaco.swarm.training.state_download import StateDownload
from dipaco.swarm.training.state_holder import StateHolder

HELD_SECONDS = 3.0  # time for another backbone to reply with its state


async def fetch_held_state(
    wire: Wire,
    holder: StateHolder,
    others: Collection[str],
    origin: str,
    steps: tuple[int, int],
    say: Callable[[str], None],
) -> None:
    """Takes the newest state that a backbone holds. This one starts from the saved state. Another
    backbone that followed the group may be further.

    Args:
      wire, holder: parts of this backbone.
      others: addresses of the other backbones.
      origin: names the phase.
      steps: the first and the last step that the state may precede.
      say: called with a sentence about each event.
    """
    found: list[StateManifest] = []
    for address in others:
        with contextlib.suppress(*PEER_ERRORS):
            manifest, _ = await wire.ask(
                address,
                "held",
                HeldStateRequest(origin=origin),
                StateManifest,
                within_seconds=HELD_SECONDS,
                from_backbone=True,
            )
            found.append(manifest)
    for manifest in sorted(found, key=lambda one: one.step, reverse=True):
        if manifest.origin == origin and steps[0] <= manifest.step <= steps[1]:
            download = StateDownload(wire, holder, "none", say)
            with contextlib.suppress(*PEER_ERRORS):
                if await download.fetch(manifest):
                    return
