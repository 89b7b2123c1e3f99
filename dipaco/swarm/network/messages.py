"""Requests, replies and the group's state, as values. Arrays travel beside them, as plain bytes.

Each request names its reply. Docstrings are spoken by a peer, in the first person.
"""

import hashlib
from typing import NamedTuple

import msgspec

from dipaco.control.members.leaderboard import VolunteerRecord
from dipaco.swarm.planning.paths import PathNeed

NOT_LEADING = "this backbone does not lead"  # a refusal: ask the others
RUN_OVER = "the run is over"
RUN_FAILED = "the run has failed; its organiser sees why, and says when to join again"
DIGEST_BYTES = 16
UNKNOWN_PEER = "you are not known here (any more): join first"  # likewise
POLL_SECONDS = 3.0  # a poll is answered within this time, whatever happens
NOT_YET = "that round is not known here yet: ask again"  # likewise


class StatePosition(NamedTuple):
    """Names the state that a peer holds. Equal positions mean equal states."""

    origin: str  # names the phase and its first state
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
    """Done. A payload may come along. Also what I ask with if the method says it all: `leave`;
    `manifest`, of the group's state (reply: `StateManifest`); `run`, of any backbone (reply:
    `RunOverview`). If the plan names me as a checker, `check`: what do I compute? (Reply:
    `WorkReply`, with the rows.) `checked`: the sum of their gradients comes along, float32.
    """


class JoinRequest(PeerMessage):
    """I would like to take part. Reply: `GroupInfo`."""

    version: str
    address: str | None  # None: I only dial out
    computes: bool  # False: a backbone
    config: str = ""  # digest of the group's settings, if I know them already
    bytes_per_second: float = 0.0  # my guess of my link's speed; 0 = unknown


class SettingsRequest(PeerMessage):
    """Tell me the settings of this group. Reply: `GroupInfo`."""

    computes: bool = True  # the same as in `JoinRequest`


class GroupInfo(PeerMessage):
    """All that a peer needs in order to take part."""

    leader: str  # empty: this backbone does not lead; ask the others
    end: str = ""  # why no backbone leads again, if so: a sentence
    settings: str = ""  # JSON: model, inner settings, block size, codec
    backbones: tuple[str, ...] = ()  # addresses
    is_reached: bool = True  # false: I take you for a client, since your address does not answer
    seen_at: str = ""  # the address at which I reach you


class Record(msgspec.Struct, frozen=True, array_like=True):
    """A peer's address by its own word: `addresses`."""

    certificate: bytes  # DER
    number: int  # The newest counts.
    address: str
    signature: bytes


class AddressRecords(PeerMessage):
    """The records that I know. Tell me yours. Reply: `AddressRecords`."""

    records: tuple[Record, ...] = ()


class Sender(PeerMessage):
    """A peer with a sum of gradients, and the blocks that the leader knows to be in it."""

    name: str
    blocks: tuple[int, ...]
    targets: float


class Slice(PeerMessage):
    """Neighbouring values of the gradient, and the peer that adds them up."""

    start: int
    stop: int
    reducer: str
    address: str


class RoundPlan(PeerMessage):
    """One averaging."""

    number: int  # counts over all steps of this leader; see `round_number_of`
    step: int
    senders: tuple[Sender, ...]
    slices: tuple[Slice, ...]
    codec: str
    within_seconds: float
    # For each sender the digests of its parts, one after the other. None: not all are known yet.
    # Empty: the leader adds up everything, and none are needed.
    commitments: tuple[bytes, ...] | None = None
    seed: bytes = b""  # for sketches; given once the leader has all means
    missing: tuple[tuple[str, str], ...] = ()  # (sender, reducer): send that part through me
    checkers: tuple[str, ...] = ()  # senders that compute another's rows too: see `Ack`

    @property
    def targets(self) -> float:
        return sum(sender.targets for sender in self.senders)

    def commitment(self, sender: str, part: Slice) -> bytes:
        """The digest to which a sender has committed itself; empty if it needed none."""
        if not self.commitments:
            return b""
        (whole,) = (
            one
            for each, one in zip(self.senders, self.commitments, strict=True)
            if each.name == sender
        )
        first = DIGEST_BYTES * self.slices.index(part)
        return whole[first : first + DIGEST_BYTES]


ROUNDS_PER_TERM = 1 << 32


def round_number_of(term: int, count: int) -> int:
    """A number that no other leader gives, so that nobody takes a round for one of the last leader.
    `term`: drawn at random by a backbone when it begins to lead. `count`: its rounds, from 1.
    """
    return term * ROUNDS_PER_TERM + count


def is_same_term(number: int, other: int) -> bool:
    """True if two rounds have the same leader. Then their numbers are in order."""
    return number // ROUNDS_PER_TERM == other // ROUNDS_PER_TERM


class ClosedStep(PeerMessage):
    """A step that was taken."""

    step: int  # its number, or the first one's; the group is `steps` further
    before: str  # lineage before the step
    after: str
    round_number: int
    slices: tuple[Slice, ...]
    digests: tuple[bytes, ...]  # digests of each slice's coded mean
    codec: str
    learning_rate: float
    loss: float
    steps: int = 1  # steps that its members took by themselves (`GroupSettings.local_steps`)


class GroupState(Positioned):
    """The state of the group. All peers poll it. It is a state, so no peer needs to see every
    change. Only changes since the peer's last known state travel: `differences.py`.
    """

    origin: str = ""
    step: int = -1
    lineage: str = ""
    number: int = 0  # grows with every change
    leader: str = ""
    is_open: bool = False  # False: between two phases
    end: str = ""  # why the run needs no peers any more, if so: a sentence
    plan: RoundPlan | None = None
    closed: tuple[ClosedStep, ...] = ()  # the last steps, the newest last
    pinned_step: int = -1  # donors keep their state of this step for newcomers; -1 = none
    backbones: tuple[str, ...] = ()  # addresses
    revoked: tuple[str, ...] = ()


class PollRequest(Positioned):
    """Answer as soon as the group's state is not the one that I know. My position names the state
    that I hold. Reply: `StateUpdate`.
    """

    known: int
    leader: str
    steps_taken: int  # steps with this group
    bytes_up: int
    bytes_down: int
    up_bytes_per_second: float
    down_bytes_per_second: float


class BlockResult(PeerMessage):
    """One block's gradient is computed, and can be added."""

    block: int
    loss: float  # summed over its targets
    targets: float


class WorkRequest(PeerMessage):
    """The blocks that I have computed, and whether I want more. Reply: `WorkReply`."""

    step: int  # step of the rows in `done`
    lineage: str  # lineage of the state from which their gradients are computed
    done: tuple[BlockResult, ...] = ()
    wants_more: bool = False
    sum_is_lost: bool = False  # the blocks in my sum must go to others
    # `done` was computed for the last leader: accept all of it, or nothing
    for_last_leader: bool = False
    was_late: bool = False  # I have computed a block whose step was over before


class WorkReply(PeerMessage):
    """The blocks that count, and the blocks to do next. The rows of the latter come along."""

    accepted: tuple[int, ...] = ()
    blocks: tuple[int, ...] = ()
    ask_again_seconds: float = 1.0  # delay before the next request if there are no blocks
    step: int = -1  # step of the rows
    lineage: str = ""  # lineage of the state from which their gradients are computed
    # Why there are no blocks: "is parked" (one takes you longer than the others need for all that
    # is left) or "is suspended" (averagings did not end with you).
    why: str = ""


class BringRequest(PeerMessage):
    """To the leader, one for each slice: as `commit` the digests of my parts, and I show none
    before all senders have done so; as `sketch` their sketches (`training.sum_sketch`). Reply:
    `Ack`.
    """

    round_number: int
    content: bytes


class SliceRequest(PeerMessage):
    """About a slice: as `push` a sender's part comes along; as `slice_mean` I want the mean, as
    soon as it is there; as `part` a part that you have added up. Reply: `Ack`, with the mean or the
    part.
    """

    round_number: int
    start: int
    stop: int
    sender: str = ""  # whose part it is


class ForwardRequest(PeerMessage):
    """To the leader: pass on this part, whose reducer I do not reach. Reply: `Ack`."""

    round_number: int
    reducer: str


class ArrivedRequest(PeerMessage):
    """Tell me which parts have arrived. Reply: `ArrivedReply`."""

    round_number: int


class ArrivedReply(PeerMessage):
    """The senders whose parts have arrived."""

    senders: tuple[str, ...]


class PastMeanRequest(PeerMessage):
    """The mean gradient of a slice of a step that was taken. Reply: `Ack`, with the coded mean."""

    step: int
    before: str  # lineage before the step
    start: int
    stop: int


class HeldStateRequest(PeerMessage):
    """I am a backbone that is to lead; you may be further in this phase. Reply: `StateManifest`."""

    origin: str


class StateManifest(Positioned):
    """The chunks of a state, and the peers that have it."""

    chunk_bytes: int
    digests: tuple[bytes, ...]
    donors: tuple[str, ...]  # addresses
    losses: tuple[float, ...]  # losses of this phase's steps


class ChunkRequest(PeerMessage):
    """One chunk of a state. Reply: `Ack`, with the chunk."""

    step: int
    lineage: str
    number: int


def digest(content: bytes | memoryview) -> bytes:
    """The digest by which messages refer to bytes."""
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()


def lineage_after(before: str, digests: tuple[bytes, ...], learning_rate: float) -> str:
    """The name of the state after a step."""
    state = hashlib.blake2b(before.encode(), digest_size=12)
    state.update(repr(learning_rate).encode())
    for one in digests:
        state.update(one)
    return state.hexdigest()


class RunOverview(PeerMessage):
    """The run by its ledger."""

    steps: int = 0  # steps of every path, over all phases
    paths: tuple[PathNeed, ...] = ()
    helpers: tuple[VolunteerRecord, ...] = ()  # the most samples first
