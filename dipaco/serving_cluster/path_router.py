"""Which replica takes a request: the one that its path belongs to, or the next if that is busy.

Every path ranks all replicas by a hash of both (rendezvous hashing, Thaler and Ravishankar 1998).
Its requests go to the first replica that is not busy. So a path stays where it is in memory, and a
path under load spreads to a second replica and a third (bounded loads, arXiv 1608.01350). Adding or
removing a replica moves only the paths that rank it first. A replica that could not finish a
request is the last to be asked for it again.

Ray Serve's own choice by `multiplexed_model_id` asks another replica only when those that hold the
model refuse, and then the one with the fewest models, up to a second later (Ray 2.60; ray issues
48741, 65691): a hot path stayed on one replica while others were idle.

Ray ships this file by value, so it imports nothing of dipaco.
"""

import hashlib
from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica


class PathRouter(RequestRouter):
    """Ranks replicas for a request. Its `multiplexed_model_id` is the path, and then the names of
    replicas that could not finish it.
    """

    def initialize_state(self, **kwargs: Any) -> None:
        """Takes `busy`: a replica with that many requests counts as busy."""
        self._busy: int = kwargs["busy"]

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """One by one: replicas that are not busy, then busy ones, the least loaded first, and last
        those that could not finish it; equals in the path's order.
        """
        path = tried = ""
        if pending_request is not None:
            # Without it, Ray asks again at once while all are full.
            pending_request.routing_context.should_backoff = True
            path, _, tried = pending_request.metadata.multiplexed_model_id.partition(" ")

        def place(replica: RunningReplica) -> tuple[bool, int, bytes]:
            name = replica.replica_id.unique_id
            return name in tried.split(), self._load(replica), _rank(path, name)

        return [[replica] for replica in sorted(candidate_replicas, key=place)]

    def _load(self, replica: RunningReplica) -> int:
        """0 while it is not busy; where all are, those with fewer requests come first."""
        return (self.replica_queue_len_cache.get(replica.replica_id) or 0) // self._busy


def _rank(path: str, replica: str) -> bytes:
    return hashlib.sha256(f"{path} {replica}".encode()).digest()
