"""Requests and replies between peers: one stream each, signed by both sides.

    request   length, header, payload (arrays as plain bytes)
    reply     the same; its method is `reply` or `refusal`, and it names its request
    hello     a request whose reply tells the peer's name; every other request names its recipient
    header    msgpack: a seal, and what is sealed: method, body, length and digest of the payload

A stranger's payload is never read: it is refused by its header, which is small and must arrive
soon. If many connections have not sent theirs yet, the oldest is closed. Members' payloads are read
only if their method has one and admits the request (`Wire.register`), and only as much at a time as
`open_requests` allows. A body is a msgspec struct: an unknown, missing or wrongly typed field is
refused before any handler sees it. Nothing is unpickled.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import msgspec

from dipaco.errors import DipacoError
from dipaco.swarm.errors import BadMessage, MessageRefused, SwarmRefuses
from dipaco.swarm.network.addresses import hang_up_hint
from dipaco.swarm.network.credentials import (
    OTHER_RECIPIENT,
    Certificate,
    Signer,
    Verifier,
    printable,
)
from dipaco.swarm.network.envelope import Body, Envelope, Header, decoded, read_header
from dipaco.swarm.network.framing import receive_payload, send
from dipaco.swarm.network.link_meter import LinkMeter
from dipaco.swarm.network.messages import digest
from dipaco.swarm.network.open_requests import OpenRequests
from dipaco.swarm.network.requests import (
    Admits,
    PeerReply,
    PeerRequest,
    RequestHandler,
)
from dipaco.swarm.network.side_by_side import first_of, side_by_side
from dipaco.swarm.network.streams import Transport
from dipaco.swarm.network.unproven import Unproven

REQUEST_BYTES = 512 << 10  # limit of a request's header (a seal, a method and a body)
REPLY_BYTES = 4 << 20  # limit of a reply's header
HEADER_SECONDS = 30.0  # limit for the header of a request to arrive
MAX_UNKNOWN = 256  # connections whose header has not arrived
LEAST_SPEED = 12_500.0  # bytes a second of a reply's payload; a slower peer is given up
# Methods whose replies have a payload.
WITH_CONTENT = {"chunk", "part", "past_mean", "slice_mean", "work"}
HELLO = "hello"  # the one method that needs no recipient
# Errors that `Wire.ask` raises if a peer is at fault.
PEER_ERRORS = (OSError, TimeoutError, BadMessage, MessageRefused, SwarmRefuses)


_Reply = tuple[str, msgspec.Struct, bytes | memoryview]  # method, body, payload


class Wire:
    """Sends requests to peers, and handles theirs.

    Args:
      signer, verifier: keys and rules of this session.
      max_payload_bytes: a larger payload is refused unread. It may be changed at any time.
      meter: measures this peer's link.
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
        self._admits: dict[str, Admits] = {}  # keyed by methods whose requests bring a payload
        self._open_requests = OpenRequests()
        self.transport: Transport | None = None
        self.on_refused: Callable[[str, str], None] = lambda sender, reason: None
        self._unknown = Unproven(MAX_UNKNOWN)
        self._names: dict[str, str] = {}  # address -> the session that answered there last
        self.register(HELLO, _Hello, _greet)

    def register(
        self,
        method: str,
        body: type[msgspec.Struct],
        handler: RequestHandler,
        *,
        admits: Admits | None = None,
    ) -> None:
        """Routes later requests with this method to `handler`.

        Args:
          admits: asked before a payload is read, with the request without it. None: unchanged, and
            new methods bring no payload.
        """
        self._handlers[method] = body, handler
        if admits is not None:
            self._admits[method] = admits

    @property
    def address(self) -> str | None:
        return None if self.transport is None else self.transport.address

    async def ask(
        self,
        address: str,
        method: str,
        body: msgspec.Struct,
        reply: type[Body],
        *,
        payload: bytes | memoryview = b"",
        within_seconds: float,
        from_backbone: bool = False,
        recipient: str = "",
    ) -> tuple[Body, bytes]:
        """Sends a request, and waits for the reply. No other peer can take the request.

        Args:
          reply: the type of the reply.
          within_seconds: limit until the reply begins. Its payload then has as long again, and the
            time that it needs at `LEAST_SPEED`.
          from_backbone: refuse a reply from any other peer.
          recipient: the intended session; empty = the one that answers at the address.

        Raises:
          OSError: there is no reply. A TimeoutError is one: the reply is late.
          SwarmRefuses: the peer refuses, and says why.
          MessageRefused, BadMessage: the reply is not authentic, or cannot be understood.
        """
        async with asyncio.timeout(within_seconds) as limit:
            try:
                to = recipient or self._names.get(address) or await self._greeted(address)
                late = (limit, within_seconds) if method in WITH_CONTENT else None
                sent = method, body, payload, from_backbone, late
                try:
                    _, envelope, content = await self._exchange(address, to, *sent)
                except SwarmRefuses as error:
                    if recipient or error.values["reason"] != OTHER_RECIPIENT:
                        raise
                    # Another session answers there now, so nothing was done.
                    to = await self._greeted(address)
                    _, envelope, content = await self._exchange(address, to, *sent)
            except asyncio.IncompleteReadError as error:
                hint = "" if error.partial else hang_up_hint(address)
                raise ConnectionResetError(f"the peer hung up{hint}") from error
        return decoded(envelope.body, reply), content

    async def _greeted(self, address: str) -> str:
        """The session that answers at an address."""
        asked = HELLO, _Hello(), b"", False, None
        certificate, envelope, _ = await self._exchange(address, "", *asked)
        seen = decoded(envelope.body, _Greeting).seen_from
        if seen and certificate.role == "backbone" and self.transport is not None:
            self.transport.now_seen_at(seen)
        return self._names[address]

    async def _exchange(
        self,
        address: str,
        recipient: str,
        method: str,
        body: msgspec.Struct,
        payload: bytes | memoryview,
        from_backbone: bool,
        late: tuple[asyncio.Timeout, float] | None,
    ) -> tuple[Certificate, Envelope, bytes]:
        assert self.transport is not None
        reader, writer = await self.transport.open(address)
        with contextlib.closing(writer):
            nonce = await self._send(writer, method, body, payload, recipient)
            certificate, envelope = await self._receive_reply(
                reader, nonce, address, from_backbone=from_backbone
            )
            if late is not None:
                limit, seconds = late
                seconds += envelope.payload_bytes / LEAST_SPEED
                limit.reschedule(asyncio.get_running_loop().time() + seconds)
            elif envelope.payload_bytes:
                raise BadMessage(problem=f"it would bring {envelope.payload_bytes} bytes")
            return certificate, envelope, await self._receive_payload(reader, envelope)

    async def _receive_reply(
        self, reader: asyncio.StreamReader, nonce: bytes, address: str, *, from_backbone: bool
    ) -> tuple[Certificate, Envelope]:
        """The reply to a request, and its sender's certificate. The payload is still to be read."""
        header = await read_header(reader, REPLY_BYTES)
        certificate, envelope = self._open(header)
        if envelope.in_reply_to != nonce:
            raise _refused(header, "it replies to another request")
        if from_backbone and certificate.role != "backbone":
            raise _refused(header, "it is no backbone")
        self._names[address] = header.seal.sender
        if envelope.method == "refusal":
            raise SwarmRefuses(reason=printable(decoded(envelope.body, _Refusal).reason))
        return certificate, envelope

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handles one request of a peer. When the peer hangs up, its handler is cancelled."""
        async with contextlib.AsyncExitStack() as held:
            try:
                header = await self._first_header(reader)
                try:
                    certificate, envelope = self._open(header)
                    serial, num_bytes = certificate.serial, len(header.envelope)
                    held.enter_context(self._open_requests.one(serial, num_bytes))
                    body, handler = self._asked(header, envelope)
                    source = "" if self.transport is None else self.transport.seen_from(writer)
                    request = PeerRequest(header.seal.sender, certificate, b"", source)
                    if envelope.payload_bytes:
                        await self._admit(reader, envelope, body, request)
                        await held.enter_async_context(self._open_requests.payload(request.sender))
                        content = await self._receive_payload(reader, envelope)
                        request = request._replace(payload=content)
                except DipacoError as error:
                    await self._reply(writer, header, *self._refusal(header, error))
                    return
            except (OSError, asyncio.IncompleteReadError, BadMessage):
                return
            handled = self._handle(header, handler, body, request)
            async with side_by_side(handled, reader.read(1)) as (handling, hanging_up):
                await first_of(handling, hanging_up)
                if handling.done():
                    with contextlib.suppress(OSError):
                        await self._reply(writer, header, *handling.result())

    def _asked(self, header: Header, envelope: Envelope) -> tuple[Any, RequestHandler]:
        """The body of a request, and its handler. Raises `BadMessage`."""
        if envelope.method not in self._handlers:
            raise BadMessage(problem=f"there is no method `{envelope.method}`")
        if envelope.method != HELLO and not header.seal.recipient:
            raise BadMessage(problem="it names no recipient, and any peer could take it")
        if envelope.payload_bytes and envelope.method not in self._admits:
            problem = f"it would bring {envelope.payload_bytes} bytes, and `{envelope.method}` none"
            raise BadMessage(problem=problem)
        kind, handler = self._handlers[envelope.method]
        return decoded(envelope.body, kind), handler

    async def _admit(
        self, reader: asyncio.StreamReader, envelope: Envelope, body: Any, request: PeerRequest
    ) -> None:
        """Raises the same as the method's `admits`. A sender that is refused without a fault of its
        own still sends its payload, and then reads why. That payload is dropped as it arrives.
        """
        try:
            await self._admits[envelope.method](body, request)
        except SwarmRefuses:
            await self._receive_payload(reader, envelope, keeps=False)
            raise

    async def _reply(
        self, writer: asyncio.StreamWriter, to: Header, method: str, body: Any, payload: Any
    ) -> None:
        await self._send(writer, method, body, payload, to.seal.sender, to.seal.nonce)

    async def _handle(
        self, header: Header, handler: RequestHandler, body: Any, request: PeerRequest
    ) -> _Reply:
        try:
            return "reply", *await handler(body, request)
        except DipacoError as error:
            return self._refusal(header, error)

    def _refusal(self, header: Header, error: DipacoError) -> _Reply:
        reason = printable(str(error.values.get("reason", error)))
        if isinstance(error, MessageRefused | BadMessage) and reason != OTHER_RECIPIENT:
            self.on_refused(printable(header.seal.sender), reason)
        return "refusal", _Refusal(reason), b""

    async def _first_header(self, reader: asyncio.StreamReader) -> Header:
        """The header of a peer that is not authenticated yet."""
        async with self._unknown.one(HEADER_SECONDS):
            return await read_header(reader, REQUEST_BYTES)

    def _open(self, header: Header) -> tuple[Certificate, Envelope]:
        certificate = self.verifier.check(header.seal, header.envelope)
        self.meter.charge("down", len(header.envelope))  # strangers use up nothing of the limit
        return certificate, decoded(header.envelope, Envelope)

    async def _send(
        self,
        writer: asyncio.StreamWriter,
        method: str,
        body: msgspec.Struct,
        payload: bytes | memoryview,
        recipient: str,
        in_reply_to: bytes = b"",
    ) -> bytes:
        sealed = self._header(method, body, payload, recipient, in_reply_to)
        await send(writer, msgspec.msgpack.encode(sealed), payload, self.meter)
        return sealed.seal.nonce

    def _header(
        self, method: str, body: msgspec.Struct, payload: Any, recipient: str, in_reply_to: bytes
    ) -> Header:
        encoded = msgspec.msgpack.encode(body)
        envelope = msgspec.msgpack.encode(
            Envelope(method, encoded, len(payload), digest(payload), in_reply_to)
        )
        return Header(self._signer.seal(envelope, recipient), envelope)

    async def _receive_payload(
        self, reader: asyncio.StreamReader, envelope: Envelope, *, keeps: bool = True
    ) -> bytes:
        most = self.max_payload_bytes
        return await receive_payload(reader, envelope, self.meter, most, keeps=keeps)


class _Refusal(msgspec.Struct, frozen=True):
    reason: str


class _Hello(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tell me who you are. The reply's seal does."""


class _Greeting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    seen_from: str = ""  # the host from which the asking peer dials


async def _greet(_: _Hello, request: PeerRequest) -> PeerReply:
    return _Greeting(request.source), b""


def _refused(header: Header, reason: str) -> MessageRefused:
    return MessageRefused(sender=printable(header.seal.sender), reason=reason)
