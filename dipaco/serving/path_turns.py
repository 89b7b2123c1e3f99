"""Clients share the memory for paths: who has the fewest paths in use gets room next.

Of clients with equally many, the one whose turn came longest ago is next: a client goes to the end
when it begins to wait and whenever it gives a path back. So one that asks for many paths waits for
its own, others wait for at most one path of it, and none waits for ever. Each memory (one a device)
has turns of its own.
"""

import asyncio
import collections
import dataclasses

from dipaco.serving.path_cache import Modules, PathDigests, PathPin, digests_of


@dataclasses.dataclass(eq=False)
class RoomRequest:
    """A request that waits for room for a path."""

    client: str
    modules: Modules
    memory: int  # the number of the one that the path goes to
    pin: asyncio.Future[PathPin]
    without_room_since: float | None = None  # when it was first refused

    @property
    def path(self) -> PathDigests:
        """The digests of its modules."""
        return digests_of(self.modules)


class PathTurns:
    """The requests that wait for room, and the paths that each client has in use. Not
    thread-safe.
    """

    def __init__(self):
        # By client and memory, the oldest first; the client whose turn at a memory came longest ago
        # comes before others there. None is empty.
        self._waiting: collections.OrderedDict[tuple[str, int], list[RoomRequest]] = (
            collections.OrderedDict()
        )
        # (client, memory) -> how often it has each path in use. None is empty.
        self._in_use: dict[tuple[str, int], collections.Counter[PathDigests]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def add(self, request: RoomRequest) -> None:
        self._waiting.setdefault((request.client, request.memory), []).append(request)

    def remove(self, request: RoomRequest) -> None:
        """No error if it does not wait."""
        key = request.client, request.memory
        theirs = self._waiting.get(key, [])
        if request in theirs:
            theirs.remove(request)
            if not theirs:
                del self._waiting[key]

    def take(self, client: str, memory: int, path: PathDigests) -> None:
        """A client has a path in use, once more."""
        self._in_use.setdefault((client, memory), collections.Counter())[path] += 1

    def give_back(self, client: str, memory: int, path: PathDigests) -> None:
        key = client, memory
        paths = self._in_use[key]
        paths[path] -= 1
        if not paths[path]:
            del paths[path]
        if not paths:
            del self._in_use[key]
        if key in self._waiting:
            self._waiting.move_to_end(key)

    def in_order(self) -> list[RoomRequest]:
        """Those that wait, the next first: each as if those before it had got their paths."""
        ranked: list[tuple[int, int, RoomRequest]] = []
        for turn, (key, theirs) in enumerate(self._waiting.items()):
            paths = set(self._in_use.get(key, ()))
            for request in theirs:
                ranked.append((len(paths), turn, request))
                paths.add(request.path)
        return [request for _, _, request in sorted(ranked, key=lambda each: each[:2])]
