"""What a backbone says of the whole run to anyone who asks, whether they take part or not.

Docstrings are what is said, in the first person, as in `messages.py`.
"""

from dipaco.swarm.network.messages import PeerMessage


class RunRequest(PeerMessage):
    """How is the run, and who helps? Reply: `RunOverview`. Of any backbone, without joining."""


class PathNeed(PeerMessage):
    """A path that has a backbone, and what its phase still takes."""

    path: int
    addresses: tuple[str, ...]  # of its backbones
    step: int
    samples_left: int  # of its phase
    samples_per_second: float  # of the volunteers that are there
    volunteers: int
    expected_samples_per_second: float = 0.0  # of them, with those that have just come
    loss: float | None = None  # of its last step


class Helper(PeerMessage):
    """What a volunteer has done, over all paths and sessions."""

    place: int
    name: str
    samples: int
    share: float
    is_here: bool
    does: str = ""  # what its machines do now
    samples_per_second: float = 0.0  # of these


class RunOverview(PeerMessage):
    """The run as its ledger has it."""

    steps: int = 0  # of every path, in all phases
    paths: tuple[PathNeed, ...] = ()
    helpers: tuple[Helper, ...] = ()  # the most samples first
