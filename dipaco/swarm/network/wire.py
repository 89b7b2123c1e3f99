"""Questions and answers between peers: one stream each, both sides signed.

    question   length, header, payload (arrays as plain bytes)
    answer     the same; its method is `answer` or `refusal`, and it names the question it answers
    header     msgpack: a seal, and what is sealed: method, body, length and digest of the payload

So what a stranger would bring is never read: it is refused by its header, which must come soon, and
is small; where many have not shown theirs yet, the first of them is sent away. A body is a msgspec
struct: a field too many, one that is missing or of another type is refused before anybody looks at
it. Nothing can be unpickled: there is nothing that does.
"""

import asyncio
import collections
import contextlib
import hashlib
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

from dipaco.errors import DipacoError
from dipaco.swarm.errors import BadMessage, MessageRefused, SwarmRefuses
from dipaco.swarm.network.credentials import Certificate, Seal, Signer, Verifier, printable
from dipaco.swarm.network.transport import Transport
from dipaco.swarm.planning.progress import Rate

QUESTION_BYTES = 512 << 10  # of its header (a seal, a method and a body), at most
ANSWER_BYTES = 4 << 20  # likewise
HEADER_SECONDS = 30.0  # for a question's to come
MAX_UNKNOWN = 256  # connections on which it has not come yet
CHUNK_SECONDS = 60.0  # for each chunk of its payload
CHUNK_BYTES = 128 << 10  # between two looks at the clock
MEASURED_BYTES = 64 << 10  # smaller transfers say nothing of a link
# What asking a peer may end with.
PEER_ERRORS = (OSError, TimeoutError, BadMessage, MessageRefused, SwarmRefuses)

Body = TypeVar("Body", bound=msgspec.Struct)


class _Envelope(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What is signed."""

    method: str
    body: bytes
    payload_bytes: Annotated[int, msgspec.Meta(ge=0)]
    payload_digest: bytes
    asked: bytes  # of an answer: the number of the question


class _Header(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    seal: Seal
    envelope: bytes


class PeerRequest(NamedTuple):
    """What a handler gets; who asks is beyond doubt."""

    sender: str  # name/session
    certificate: Certificate
    payload: bytes


PeerReply = tuple[msgspec.Struct, bytes | memoryview]
_Reply = tuple[str, msgspec.Struct, bytes | memoryview]  # method, body, payload
RequestHandler = Callable[[Any, PeerRequest], Awaitable[PeerReply]]


class LinkMeter:
    """Bytes moved, how fast, and no faster than was lent.

    Args:
      most_bytes_per_second: in each direction; None = what the link gives.
    """

    def __init__(self, max_bytes_per_second: float | None = None):
        self.bytes_up = self.bytes_down = 0
        self.up = self.down = Rate()
        self._most = max_bytes_per_second
        self._free_at = {"up": 0.0, "down": 0.0}

    async def wait(self, direction: str, num_bytes: int) -> None:
        """Until that many more may go."""
        if self._most is None:
            return
        now = time.monotonic()
        start = max(now, self._free_at[direction])
        self._free_at[direction] = start + num_bytes / self._most
        if self._free_at[direction] > now:
            await asyncio.sleep(self._free_at[direction] - now)

    def sent(self, num_bytes: int, seconds: float) -> None:
        self.bytes_up += num_bytes
        if num_bytes > MEASURED_BYTES:
            self.up = self.up.after(num_bytes, seconds)

    def received(self, num_bytes: int, seconds: float) -> None:
        self.bytes_down += num_bytes
        if num_bytes > MEASURED_BYTES:
            self.down = self.down.after(num_bytes, seconds)


class Wire:
    """Asks peers, and answers them.

    Args:
      signer, verifier: who we are, and whom we believe.
      most_payload_bytes: what is larger is refused unread. May be set anew, once more is known.
      meter: counts what moves.
    """

    def __init__(
        self,
        signer: Signer,
        verifier: Verifier,
        max_payload_bytes: int,
        meter: LinkMeter | None = None,
    ):
        self.name = signer.name
        self._signer, self.verifier = signer, verifier
        self.max_payload_bytes = max_payload_bytes
        self.meter = meter or LinkMeter()
        self._handlers: dict[str, tuple[type[msgspec.Struct], RequestHandler]] = {}
        self.transport: Transport | None = None
        self.on_refused: Callable[[str, str], None] = lambda sender, reason: None
        self._unknown: collections.deque[asyncio.Timeout] = collections.deque()

    def register(self, method: str, body: type[msgspec.Struct], handle: RequestHandler) -> None:
        """From now on questions of this method go to `handle`."""
        self._handlers[method] = body, handle

    @property
    def address(self) -> str | None:
        return None if self.transport is None else self.transport.address

    async def ask(
        self,
        address: str,
        method: str,
        body: msgspec.Struct,
        answer: type[Body],
        *,
        payload: bytes | memoryview = b"",
        within_seconds: float,
        from_backbone: bool = False,
    ) -> tuple[Body, bytes]:
        """Asks, and waits for the answer.

        Args:
          address: of the peer.
          method, body, payload: the question.
          answer: the type that is expected.
          within_seconds: then a peer that has not answered is given up.
          from_backbone: an answer of anybody else is refused.

        Raises:
          OSError: nobody answers; TimeoutError (one of them): not in time.
          SwarmRefuses: it does not want to, and says why.
          MessageRefused, BadMessage: what came is not to be believed, or not to be understood.
        """
        assert self.transport is not None
        async with asyncio.timeout(within_seconds):
            try:
                reader, writer = await self.transport.open(address)
                with contextlib.closing(writer):
                    nonce = await self._send(writer, method, body, payload, recipient="")
                    header = await _read_header(reader, ANSWER_BYTES)
                    certificate, envelope = await self._open(header)
                    if envelope.asked != nonce:
                        raise _refused(header, "it answers another question")
                    if from_backbone and certificate.role != "backbone":
                        raise _refused(header, "it is no backbone")
                    if envelope.method == "refusal":
                        raise SwarmRefuses(
                            reason=printable(_decode(envelope.body, _Refusal).reason)
                        )
                    content = await self._receive_payload(reader, envelope)
            except asyncio.IncompleteReadError as error:
                raise ConnectionResetError("the peer hung up") from error
        return _decode(envelope.body, answer), content

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One question of a peer. When it hangs up, its question is dropped."""
        try:
            header = await self._first_header(reader)
            try:
                certificate, envelope = await self._open(header)
                content = await self._receive_payload(reader, envelope)
            except DipacoError as error:
                await self._say(writer, header, *self._refusal(header, error))
                return
        except (OSError, asyncio.IncompleteReadError, BadMessage):
            return
        question = PeerRequest(header.seal.sender, certificate, content)
        answering = asyncio.ensure_future(self._answer(header, envelope, question))
        hanging_up = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({answering, hanging_up}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                with contextlib.suppress(OSError):
                    await self._say(writer, header, *answering.result())
        finally:
            for task in (answering, hanging_up):
                task.cancel()
            await asyncio.gather(answering, hanging_up, return_exceptions=True)

    async def _say(
        self, writer: asyncio.StreamWriter, asked: _Header, method: str, body: Any, payload: Any
    ) -> None:
        await self._send(writer, method, body, payload, asked.seal.sender, asked.seal.nonce)

    async def _answer(self, header: _Header, envelope: _Envelope, question: PeerRequest) -> _Reply:
        try:
            if envelope.method not in self._handlers:
                raise BadMessage(problem=f"nobody here answers `{envelope.method}`")
            kind, handle = self._handlers[envelope.method]
            body, payload = await handle(_decode(envelope.body, kind), question)
            return "answer", body, payload
        except DipacoError as error:
            return self._refusal(header, error)

    def _refusal(self, header: _Header, error: DipacoError) -> _Reply:
        reason = printable(str(error.values.get("reason", error)))
        if isinstance(error, MessageRefused | BadMessage):
            self.on_refused(printable(header.seal.sender), reason)
        return "refusal", _Refusal(reason), b""

    async def _first_header(self, reader: asyncio.StreamReader) -> _Header:
        """Of somebody who may be anybody."""
        async with asyncio.timeout(HEADER_SECONDS) as limit:
            self._unknown.append(limit)
            if len(self._unknown) > MAX_UNKNOWN:
                first = self._unknown.popleft()
                if not first.expired():
                    first.reschedule(0)  # its time is over now
            try:
                return await _read_header(reader, QUESTION_BYTES)
            finally:
                with contextlib.suppress(ValueError):
                    self._unknown.remove(limit)

    async def _open(self, header: _Header) -> tuple[Certificate, _Envelope]:
        certificate = self.verifier.check(header.seal, header.envelope)
        num_bytes = len(header.envelope)
        await self.meter.wait("down", num_bytes)  # strangers use up nothing that was lent
        self.meter.bytes_down += num_bytes
        return certificate, _decode(header.envelope, _Envelope)

    async def _send(
        self,
        writer: asyncio.StreamWriter,
        method: str,
        body: msgspec.Struct,
        payload: bytes | memoryview,
        recipient: str,
        asked: bytes = b"",
    ) -> bytes:
        encoded = msgspec.msgpack.encode(body)
        envelope = msgspec.msgpack.encode(
            _Envelope(method, encoded, len(payload), _digest(payload), asked)
        )
        seal = self._signer.seal(envelope, recipient)
        header = msgspec.msgpack.encode(_Header(seal, envelope))
        started = time.monotonic()
        await self.meter.wait("up", len(header))
        writer.write(len(header).to_bytes(4, "big") + header)
        for offset in range(0, len(payload), CHUNK_BYTES):
            chunk = payload[offset : offset + CHUNK_BYTES]
            await self.meter.wait("up", len(chunk))
            writer.write(bytes(chunk))
            await writer.drain()
        await writer.drain()
        self.meter.sent(len(header) + len(payload), time.monotonic() - started)
        return seal.nonce

    async def _receive_payload(self, reader: asyncio.StreamReader, envelope: _Envelope) -> bytes:
        num_bytes = envelope.payload_bytes
        if num_bytes > self.max_payload_bytes:
            raise BadMessage(problem=f"it would bring {num_bytes} bytes")
        content, started = bytearray(), time.monotonic()
        while len(content) < num_bytes:
            async with asyncio.timeout(CHUNK_SECONDS):
                chunk = await reader.readexactly(min(CHUNK_BYTES, num_bytes - len(content)))
            await self.meter.wait("down", len(chunk))
            content += chunk
        self.meter.received(num_bytes, time.monotonic() - started)
        if _digest(content) != envelope.payload_digest:
            raise BadMessage(problem="its payload is not the one that was signed")
        return bytes(content)


class _Refusal(msgspec.Struct, frozen=True):
    reason: str


async def _read_header(reader: asyncio.StreamReader, max_bytes: int) -> _Header:
    size = int.from_bytes(await reader.readexactly(4), "big")
    if size > max_bytes:
        raise BadMessage(problem=f"its header has {size} bytes")
    return _decode(await reader.readexactly(size), _Header)


def _decode(content: bytes, kind: type[Body]) -> Body:
    try:
        return msgspec.msgpack.decode(content, type=kind)
    except msgspec.MsgspecError as error:
        raise BadMessage(problem=str(error)) from error


def _refused(header: _Header, reason: str) -> MessageRefused:
    return MessageRefused(sender=printable(header.seal.sender), reason=reason)


def _digest(payload: bytes | bytearray | memoryview) -> bytes:
    return hashlib.blake2b(payload, digest_size=32).digest()
