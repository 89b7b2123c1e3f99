"""A backbone's overview of the whole run, for anyone who asks, members or not.

Docstrings are spoken by a peer, in the first person, as in `messages.py`.
"""

from dipaco.swarm.network.messages import PeerMessage


class RunRequest(PeerMessage):
    """Tell me how the run is, and who helps. Reply: `RunOverview`. Any backbone answers."""


class PathNeed(PeerMessage):
    """A path that has a backbone, and the work left in its phase."""

    path: int
    addresses: tuple[str, ...]  # addresses of its backbones
    step: int
    samples_left: int  # samples left in its phase
    samples_per_second: float  # measured speed of its volunteers
    volunteers: int
    expected_samples_per_second: float = 0.0  # the same with newcomers included
    loss: float | None = None  # loss of its last step


class Helper(PeerMessage):
    """A volunteer's work, over all paths and sessions."""

    place: int
    name: str
    samples: int
    share: float
    is_here: bool
    does: str = ""  # present activity of its machines
    samples_per_second: float = 0.0  # speed of these machines


class RunOverview(PeerMessage):
    """The run by its ledger."""

    steps: int = 0  # steps of every path, over all phases
    paths: tuple[PathNeed, ...] = ()
    helpers: tuple[Helper, ...] = ()  # the most samples first
