"""The floors of paths that can be met together where a document only goes to its shortlist.

Paths that stand in few shortlists, or in the same few, cannot all have the documents that
`routing.floor` asks for. A floor that cannot be met would draw prices apart for nothing, at the
expense of the bounds that can be kept.

Places are filled one by one, in turn for every path, by augmenting chains (Ahuja, Magnanti and
Orlin 1993, ch. 12): a path without a free document takes one of another that can take another. So
the lowest floor is as high as it can be, then the next.

Axes: N documents, n paths of a shortlist, P paths.
"""

import numpy as np

NOBODY = -1  # holds a document that is free


def reachable_floors(shortlist_Nn: np.ndarray, num_paths: int, least: int) -> np.ndarray:
    """The floor that each path can reach while the others reach theirs: int64 [P].

    Args:
      shortlist_Nn: int [N, n], the paths that a document may go to.
      least: the floor, in documents of each path.
    """
    holders = _Holders(shortlist_Nn, num_paths)
    floor_P = np.zeros(num_paths, np.int64)
    growing = list(range(num_paths))
    for _ in range(least):
        growing = [path for path in growing if holders.give_one_more(path)]
        floor_P[growing] += 1
    return floor_P


class _Holders:
    """The path that holds each document. A held document is never free again."""

    def __init__(self, shortlist_Nn: np.ndarray, num_paths: int):
        named = np.bincount(shortlist_Nn.ravel(), minlength=num_paths)
        in_order = np.argsort(shortlist_Nn.ravel(), kind="stable") // max(shortlist_Nn.shape[1], 1)
        self._documents = np.split(in_order, np.cumsum(named)[:-1])  # path -> documents naming it
        self._seen = [0] * num_paths  # number of held documents at the head of each
        self._holder_N = np.full(len(shortlist_Nn), NOBODY)
        self._num_paths = num_paths

    def give_one_more(self, path: int) -> bool:
        """Gives the path one document more if every other path can still hold as many as before.
        True if it did.
        """
        taken_by: dict[int, tuple[int, int]] = {}  # giver -> (taker, document)
        asked = [path]
        for taker in asked:
            document = self._free(taker)
            if document is not None:
                self._holder_N[document] = taker
                while taker != path:
                    giver = taker
                    taker, document = taken_by[giver]
                    self._holder_N[document] = taker
                return True
            for giver, document in self._held(taker):
                if giver != path and giver not in taken_by:
                    taken_by[giver] = taker, document
                    asked.append(giver)
        return False

    def _free(self, path: int) -> int | None:
        """A free document that names the path."""
        documents = self._documents[path]
        while self._seen[path] < len(documents):
            document = int(documents[self._seen[path]])
            if self._holder_N[document] == NOBODY:
                return document
            self._seen[path] += 1
        return None

    def _held(self, path: int) -> list[tuple[int, int]]:
        """(holder, document) of one document that names the path, by each holder of any."""
        documents = self._documents[path]
        of_holder_P = np.full(self._num_paths, NOBODY)
        of_holder_P[self._holder_N[documents]] = documents
        return [
            (int(holder), int(of_holder_P[holder])) for holder in np.flatnonzero(of_holder_P >= 0)
        ]
