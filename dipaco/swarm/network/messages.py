"""Requests, replies and the group's state, as values. Arrays travel beside them, as plain bytes.

Each request says which reply it gets. Docstrings are what a peer says, in the first person.
"""

import hashlib
from typing import NamedTuple

import msgspec

from dipaco.swarm.network.merkle import OpenedLeaf

NOT_LEADING = "this backbone does not lead"  # a refusal: ask the others
UNKNOWN_PEER = "you are not known here (any more): join first"  # likewise
NOT_YET = "that round is not known here yet: ask again"  # likewise


class StatePosition(NamedTuple):
    """Which state a peer holds. Equal positions mean equal states, where both are exact."""

    origin: str  # names the phase and what it began with
    step: int
    lineage: str  # names the state: see `lineage_after`


class PeerMessage(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Base of all messages."""


class Positioned(PeerMessage):
    """Base of messages that name a state."""

    origin: str
    step: int
    lineage: str

    @property
    def position(self) -> StatePosition:
        return StatePosition(self.origin, self.step, self.lineage)


class Ack(PeerMessage):
    """Done; a payload may come along."""


# --- joining and leaving ---------------------------------------------------------------------


class JoinRequest(PeerMessage):
    """I would like to take part. Reply: `GroupInfo`."""

    version: str
    address: str | None  # None: I only dial out
    computes: bool  # False: auxiliary, or a backbone
    holds_state: bool  # an auxiliary does not
    config: str = ""  # digest of the group's settings, where I know them already
    bytes_per_second: float = 0.0  # what I believe my link gives; 0 = unknown
    samples_per_second: float = 0.0  # that I computed at another path; 0 = none yet


class SettingsRequest(PeerMessage):
    """What is trained here? Reply: `GroupInfo`."""

    computes: bool = True  # as in `JoinRequest`


class GroupInfo(PeerMessage):
    """What a peer needs in order to take part."""

    leader: str  # empty: this backbone does not lead; ask the others
    is_over: bool = False  # the run is: no backbone leads again
    settings: str = ""  # JSON: model, inner settings, block size, codec
    config: str = ""  # its digest
    backbones: tuple[str, ...] = ()  # addresses
    is_reached: bool = True  # at the address that you gave; else you are taken for a client


class DialBackRequest(PeerMessage):
    """Do I reach you at the address that you gave? Reply: `Ack`."""


class LeaveRequest(PeerMessage):
    """I am leaving; the sum of these blocks comes along. Reply: `Ack`."""

    step: int
    lineage: str
    blocks: tuple[int, ...]
    is_last: bool = True  # False: I bring the sum of another step as well


# --- the group's state -----------------------------------------------------------------------


class Sender(PeerMessage):
    """A peer with a sum of gradients, and what the leader knows to be in it."""

    name: str
    blocks: tuple[int, ...]
    targets: float


class Slice(PeerMessage):
    """Neighbouring values of the gradient, and which peer adds them up."""

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
    """A number that no other leader gives, so a peer that still follows the last leader takes a
    round of the next one neither for one that is over nor for one that it knows.

    Args:
      term: drawn at random by a backbone when it begins to lead.
      count: rounds of this leader, from 1.
    """
    return term * ROUNDS_PER_TERM + count


def is_same_term(number: int, other: int) -> bool:
    """Whether two rounds are of one leader; then their numbers are in order."""
    return number // ROUNDS_PER_TERM == other // ROUNDS_PER_TERM


class ClosedStep(PeerMessage):
    """A step that was taken."""

    step: int  # its number; the group is at the next
    before: str  # lineage
    after: str
    round_number: int
    slices: tuple[Slice, ...]
    digests: tuple[bytes, ...]  # of the coded mean of each slice
    codec: str
    learning_rate: float
    loss: float
    delay: int = 0  # its gradients were computed from the state so many steps before


class GroupState(Positioned):
    """Where the group is. All peers poll it; it is a state, so none needs to see every change.

    It travels as what has changed since the state that the peer has: `differences.py`.
    """

    number: int  # grows with every change
    leader: str
    is_open: bool  # False: between two phases
    is_over: bool  # the run needs no peers any more
    plan: RoundPlan | None
    closed: tuple[ClosedStep, ...]  # the last steps, the newest last
    pinned_step: int  # donors keep their state of this step for newcomers; -1 = none
    backbones: tuple[str, ...]  # addresses
    revoked: tuple[str, ...]
    refresh_seconds: float


class PollRequest(Positioned):
    """Answer as soon as the group's state is not the one that I know. Reply: `StateUpdate`.

    The position is that of the state I hold.
    """

    known: int
    leader: str
    steps_taken: int  # with this group
    is_exact: bool  # my state is the group's to the last bit
    bytes_up: int
    bytes_down: int
    up_bytes_per_second: float
    down_bytes_per_second: float
    before: str = ""  # lineage of the state before, where I can still compute rows from it


# --- work ------------------------------------------------------------------------------------


class BlockResult(PeerMessage):
    """One block's gradient is computed, and can be added."""

    block: int
    loss: float  # summed over its targets
    targets: float
    seconds: float


class WorkRequest(PeerMessage):
    """What I have computed, and whether I want more. Reply: `WorkReply`."""

    step: int  # of the rows in `done`
    lineage: str  # of the state that their gradients are computed from
    done: tuple[BlockResult, ...]
    wants_more: bool
    sum_is_lost: bool = False  # give what was in my sum to others
    for_last_leader: bool = False  # `done` was computed for it: accept all of it, or nothing
    block_seconds: float = 0.0  # that a block took me whose step was over before; 0 = none
    bases: tuple[str, ...] = ()  # lineages of the states that I can compute rows from


class WorkReply(PeerMessage):
    """Which blocks count, and which to do next; the rows of the latter come along."""

    accepted: tuple[int, ...]
    blocks: tuple[int, ...]
    within_seconds: float
    ask_again_seconds: float = 1.0  # where there are no blocks
    step: int = -1  # of the rows
    lineage: str = ""  # of the state that their gradients are computed from
    learning_rate: float | None = None  # of the step after that state; None: the rows are of it
    is_parked: bool = False  # a block takes you longer than the others need for all that is left
    is_resting: bool = False  # averagings did not end with you: you get none for a while


# --- averaging -------------------------------------------------------------------------------


class PushRequest(PeerMessage):
    """My part of a slice comes along. Reply: `Ack`."""

    round_number: int
    step: int
    start: int
    stop: int


class RelayRequest(PeerMessage):
    """I have no connection to that reducer: pass on what follows. To the leader. Reply: `Ack`; from
    then on the stream leads to the reducer.
    """

    round_number: int
    reducer: str


class UnreachedReport(PeerMessage):
    """I have no connection to that reducer, nor through you. To the leader. Reply: `Ack`."""

    round_number: int
    reducer: str


class MeanRequest(PeerMessage):
    """The mean of a slice, as soon as it is there. Reply: `MeanReply`."""

    round_number: int
    step: int
    start: int
    stop: int


class MeanReply(PeerMessage):
    """The coded mean comes along; or why it does not."""

    digest: bytes = b""
    refused: dict[str, str] = {}  # sender -> reason: the round cannot end with its part


class ArrivedRequest(PeerMessage):
    """Which parts have arrived? Reply: `ArrivedReply`."""

    round_number: int


class ArrivedReply(PeerMessage):
    """Those of these senders."""

    senders: tuple[str, ...]


class ProofRequest(PeerMessage):
    """Show the parts of a slice that you have added up, at some values. Reply: `SumProof`."""

    round_number: int
    start: int  # of the slice
    stop: int
    first: int  # values within the slice
    last: int  # the one after


class SignedPart(PeerMessage):
    """A sender's part of a slice: what the sender has signed, and some leaves of it."""

    header: bytes
    leaves: tuple[OpenedLeaf, ...]


class SumProof(PeerMessage):
    """The parts of all senders."""

    parts: tuple[SignedPart, ...]


class PastMeanRequest(PeerMessage):
    """The mean gradient of a slice of a step that was taken. Reply: `Ack`, with the coded mean."""

    step: int
    before: str  # lineage
    start: int
    stop: int


# --- state -----------------------------------------------------------------------------------


class ManifestRequest(PeerMessage):
    """I need the group's state. Reply: `StateManifest`."""

    codec: str


class HeldStateRequest(PeerMessage):
    """I am a backbone that is to lead; you may be further in this phase. Reply: `StateManifest`."""

    origin: str


class StateManifest(Positioned):
    """What a state is made of, and which peers have it."""

    chunk_bytes: int
    digests: tuple[bytes, ...]
    donors: tuple[str, ...]  # addresses
    losses: tuple[float, ...]  # of the steps of this phase


class ChunkRequest(PeerMessage):
    """One chunk of a state. Reply: `Ack`, with the chunk."""

    step: int
    lineage: str
    codec: str
    number: int


def digest(content: bytes | memoryview) -> bytes:
    """By which a message refers to bytes."""
    return hashlib.blake2b(content, digest_size=16).digest()


def lineage_after(before: str, digests: tuple[bytes, ...], learning_rate: float) -> str:
    """The name of the state after a step."""
    state = hashlib.blake2b(before.encode(), digest_size=12)
    state.update(repr(learning_rate).encode())
    for one in digests:
        state.update(one)
    return state.hexdigest()
