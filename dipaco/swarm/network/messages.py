"""What peers say to each other, as values. Arrays travel beside them, as plain bytes."""

import hashlib

import msgspec

NOT_LEADING = "this backbone does not lead"  # a refusal: ask the others
UNKNOWN_PEER = "you are not known here (any more): say hello"  # likewise


class PeerMessage(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Of every kind."""


class Ack(PeerMessage):
    """It is so."""


# --- coming and going ------------------------------------------------------------------------


class JoinRequest(PeerMessage):
    """I would like to take part."""

    version: str
    address: str | None  # None: I only dial out
    computes: bool  # False: auxiliary, or a backbone
    holds_state: bool  # an auxiliary does not
    config: str = ""  # digest of the group's settings, where I know them already
    bytes_per_second: float = 0.0  # what I believe my link gives; 0 = no idea


class SettingsRequest(PeerMessage):
    """What is trained here?"""


class GroupInfo(PeerMessage):
    """What one must know to take part."""

    leader: str  # empty: this backbone does not lead; ask the others
    settings: str = ""  # JSON: model, inner settings, block size, codec
    config: str = ""  # its digest
    backbones: tuple[str, ...] = ()  # addresses


class LeaveRequest(PeerMessage):
    """I am leaving; the sum of what I computed comes along."""

    step: int
    lineage: str
    blocks: tuple[int, ...]


# --- the group's board -----------------------------------------------------------------------


class Sender(PeerMessage):
    """A peer with a sum of gradients, and what the leader knows to be in it."""

    name: str
    blocks: tuple[int, ...]
    targets: float


class Slice(PeerMessage):
    """Neighbouring values of the gradient, and who adds them up."""

    start: int
    stop: int
    reducer: str
    address: str


class RoundPlan(PeerMessage):
    """One averaging."""

    number: int  # of the round, over all steps of this leader; see `round_number_of`
    step: int
    senders: tuple[Sender, ...]
    slices: tuple[Slice, ...]
    codec: str
    within_seconds: float

    @property
    def targets(self) -> float:
        return sum(sender.targets for sender in self.senders)


ROUNDS_PER_TERM = 1 << 32


def round_number_of(term: int, count: int) -> int:
    """A number that no other leader gives: rounds of one whose board a peer has not read yet are
    neither over nor those that the peer knows.

    Args:
      era: drawn at random by who begins to lead.
      count: rounds of this leader, from 1.
    """
    return term * ROUNDS_PER_TERM + count


def is_same_term(number: int, other: int) -> bool:
    """Whether two rounds are of one leader; then they are in order."""
    return number // ROUNDS_PER_TERM == other // ROUNDS_PER_TERM


class ClosedStep(PeerMessage):
    """A step that was taken."""

    step: int  # that it was; the group is at the next
    before: str  # lineage
    after: str
    round_number: int
    slices: tuple[Slice, ...]
    digests: tuple[bytes, ...]  # of the coded mean of each slice
    codec: str
    learning_rate: float
    loss: float


class GroupState(PeerMessage):
    """Where the group is; everybody listens to it."""

    number: int  # grows with every change
    leader: str
    origin: str  # names the phase and what it began with
    step: int
    lineage: str
    is_open: bool  # False: between two phases
    is_over: bool  # the run needs nobody any more
    plan: RoundPlan | None
    closed: tuple[ClosedStep, ...]  # the last steps, the newest last
    keep: int  # a step at which donors keep their state for newcomers; -1 = none
    backbones: tuple[str, ...]  # addresses
    revoked: tuple[str, ...]
    refresh_seconds: float


class PollRequest(PeerMessage):
    """Tell me when the board is not the one that I know."""

    known: int
    leader: str
    origin: str
    step: int
    lineage: str
    steps_taken: int  # with this group
    is_exact: bool  # its state is the group's to the last bit
    bytes_up: int
    bytes_down: int
    up_bytes_per_second: float
    down_bytes_per_second: float


# --- work ------------------------------------------------------------------------------------


class BlockResult(PeerMessage):
    """One block's gradient is computed, and can be added."""

    block: int
    loss: float  # summed over its targets
    targets: float
    seconds: float


class WorkRequest(PeerMessage):
    """What I have done, and whether I want more."""

    step: int
    lineage: str
    done: tuple[BlockResult, ...]
    wants_more: bool
    forget: bool = False  # my sum is lost: give what was in it to others
    kept: bool = False  # what is done was done for the leader before: take all of it, or nothing


class WorkReply(PeerMessage):
    """What counts, and what to do next; the rows come along."""

    accepted: tuple[int, ...]
    blocks: tuple[int, ...]
    within_seconds: float


# --- averaging -------------------------------------------------------------------------------


class PushRequest(PeerMessage):
    """My part of a slice comes along."""

    round_number: int
    step: int
    start: int
    stop: int


class MeanRequest(PeerMessage):
    """The mean of a slice, when it is there."""

    round_number: int
    step: int
    start: int
    stop: int


class MeanReply(PeerMessage):
    """It comes along; or why it does not."""

    digest: bytes = b""
    refused: dict[str, str] = {}  # sender -> reason: the round cannot end with it


class ArrivedRequest(PeerMessage):
    """Who has sent its part?"""

    round_number: int


class ArrivedReply(PeerMessage):
    """These have."""

    senders: tuple[str, ...]


# --- state -----------------------------------------------------------------------------------


class ManifestRequest(PeerMessage):
    """I need the group's state."""

    codec: str


class HeldStateRequest(PeerMessage):
    """I am a backbone that is to lead, and may have less of this phase than you."""

    origin: str


class StateManifest(PeerMessage):
    """What the state is made of, and who has it."""

    origin: str
    step: int
    lineage: str
    chunk_bytes: int
    digests: tuple[bytes, ...]
    donors: tuple[str, ...]  # addresses
    losses: tuple[float, ...]  # of the steps of this phase


class PastMeanRequest(PeerMessage):
    """The mean gradient of a slice of a step that was taken."""

    step: int
    before: str  # lineage
    start: int
    stop: int


class ChunkRequest(PeerMessage):
    """One chunk of it."""

    step: int
    lineage: str
    codec: str
    number: int


def digest(content: bytes | memoryview) -> bytes:
    """What a message refers to bytes by."""
    return hashlib.blake2b(content, digest_size=16).digest()


def lineage_after(before: str, digests: tuple[bytes, ...], learning_rate: float) -> str:
    """The name of the state after a step."""
    state = hashlib.blake2b(before.encode(), digest_size=12)
    state.update(repr(learning_rate).encode())
    for one in digests:
        state.update(one)
    return state.hexdigest()
