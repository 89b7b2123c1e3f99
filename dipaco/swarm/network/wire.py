"""Requests and replies between peers, one stream each.

    request   length, header (method, body, names, size of the payload), payload (plain bytes)
    reply     the same, without a method: the body of a reply, or the reason of a refusal

Who is at the other end is known by its certificate, before anything is read: name and role. A
session adds eight digits to the name. A header is small and must arrive soon. Payloads are read
only if their method has one and admits the request (`Wire.register`), and only as much at a time as
`limits` allows. A body is a msgspec struct: an unknown, missing or wrongly typed field is refused
before any handler sees it. Nothing is unpickled.
"""

import asyncio
import contextlib
import secrets
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

from dipaco.errors import DipacoError
from dipaco.swarm.errors import BadAddress, BadMessage, MessageRefused, SwarmRefuses
from dipaco.swarm.network.addresses import AddressBook, seen_address
from dipaco.swarm.network.credentials import BACKBONE, Certificate, Credential, Verifier, printable
from dipaco.swarm.network.limits import LinkMeter, OpenRequests
from dipaco.swarm.network.messages import AddressRecords
from dipaco.swarm.network.streams import (
    Streams,
    certificate_at,
    first_of,
    host_of,
    reason_of,
    side_by_side,
)

REQUEST_BYTES = 128 << 10  # limit of a request's header
REPLY_BYTES = 4 << 20  # limit of a reply's header
HEADER_SECONDS = 30.0  # limit for the header of a request to arrive
CHUNK_SECONDS = 60.0  # limit for each chunk of a payload, in both directions
CHUNK_BYTES = 128 << 10  # payload between two checks of the limits
LEAST_SPEED = 12_500.0  # bytes a second of a reply's payload; a slower peer is given up
DIAL_BACK_SECONDS = 3.0  # time for a newcomer to answer
# Methods whose replies have a payload.
WITH_CONTENT = {"check", "chunk", "part", "past_mean", "slice_mean", "work"}
OTHER_RECIPIENT = "the message was for another recipient"
# Errors that `Wire.ask` raises if a peer is at fault.
PEER_ERRORS = (OSError, TimeoutError, BadMessage, MessageRefused, SwarmRefuses)

Body = TypeVar("Body", bound=msgspec.Struct)
_Size = Annotated[int, msgspec.Meta(ge=0)]


class Request(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The header of a request."""

    method: str
    body: bytes
    sender: str  # name/session
    recipient: str  # a session; empty = any that answers
    payload_bytes: _Size = 0


class Reply(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The header of a reply."""

    body: bytes
    refusal: str = ""
    payload_bytes: _Size = 0


class PeerRequest(NamedTuple):
    """A request without its body. The sender is authenticated."""

    sender: str  # name/session
    certificate: Certificate
    payload: bytes
    source: str = ""  # the host from which it dials; empty = unknown


PeerReply = tuple[msgspec.Struct, bytes | memoryview]
RequestHandler = Callable[[Any, PeerRequest], Awaitable[PeerReply]]
Admits = Callable[[Any, PeerRequest], Awaitable[None]]  # raises the reason if it refuses


class Wire:
    """Sends requests to peers, and handles theirs. `max_payload_bytes`: a larger payload is refused
    unread. It may be changed at any time.
    """

    def __init__(
        self, credential: Credential, max_payload_bytes: int, meter: LinkMeter | None = None
    ):
        self.credential = credential
        self.name = f"{credential.certificate.name}/{secrets.token_hex(4)}"
        self.max_payload_bytes = max_payload_bytes
        self.meter = meter or LinkMeter()
        self.verifier = Verifier()
        self._handlers: dict[str, tuple[type[msgspec.Struct], RequestHandler]] = {}
        self._admits: dict[str, Admits] = {}  # keyed by methods whose requests bring a payload
        self._open_requests = OpenRequests()
        self.transport: Streams | None = None
        self.on_refused: Callable[[str, str], None] = lambda sender, reason: None
        self.book = AddressBook(credential)
        self.register("records", AddressRecords, self._tell_records)

    def register(
        self,
        method: str,
        body: type[msgspec.Struct],
        handler: RequestHandler,
        *,
        admits: Admits | None = None,
    ) -> None:
        """Routes later requests with this method to `handler`. `admits`: asked before a payload is
        read, with the request without it. None: unchanged, and new methods bring no payload.
        """
        self._handlers[method] = body, handler
        if admits is not None:
            self._admits[method] = admits

    @property
    def address(self) -> str | None:
        return None if self.transport is None else self.transport.address

    # --- asking --------------------------------------------------------------------------------

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
        """Sends a request, and waits for the reply. `within_seconds`: limit until it begins. Its
        payload then has as long again, and the time that it needs at `LEAST_SPEED`. `recipient`:
        the intended session; empty = the one that answers. Raises `PEER_ERRORS`.
        """
        encoded = msgspec.msgpack.encode(body)
        request = Request(method, encoded, self.name, recipient, len(payload))
        header = msgspec.msgpack.encode(request)
        assert self.transport is not None
        async with asyncio.timeout(within_seconds) as limit:
            reader, writer = await self.transport.open(address)
            with contextlib.closing(writer):
                certificate = certificate_at(writer)
                if from_backbone and certificate.role != BACKBONE:
                    raise MessageRefused(sender=certificate.name, reason="it is no backbone")
                if recipient and recipient.rpartition("/")[0] != certificate.name:
                    raise SwarmRefuses(reason=OTHER_RECIPIENT)
                try:
                    await self._send(writer, header, payload)
                    answer = decoded(await _frame(reader, REPLY_BYTES), Reply)
                    self.meter.charge("down", len(answer.body))
                    if answer.refusal:
                        raise SwarmRefuses(reason=printable(answer.refusal))
                    if answer.payload_bytes and method not in WITH_CONTENT:
                        raise BadMessage(problem=f"it would bring {answer.payload_bytes} bytes")
                    more = within_seconds + answer.payload_bytes / LEAST_SPEED
                    limit.reschedule(asyncio.get_running_loop().time() + more)
                    content = await self._receive(reader, answer.payload_bytes)
                except ssl.SSLError as error:
                    raise ConnectionRefusedError(reason_of(error)) from error
                except asyncio.IncompleteReadError as error:
                    hint = "" if error.partial else ": is this credential valid by its clock?"
                    raise ConnectionResetError(f"the peer hung up{hint}") from error
        return decoded(answer.body, reply), content

    async def exchange_records(self, address: str) -> None:
        """Tells a peer the known records, and takes its own."""
        with contextlib.suppress(*PEER_ERRORS, BadAddress):
            known = AddressRecords(records=self.book.records)
            found, _ = await self.ask(address, "records", known, AddressRecords, within_seconds=5.0)
            self.book.merge(found.records)

    async def reached_at(self, announced: str, request: PeerRequest) -> str | None:
        """The address at which a newcomer answers when it is dialled back, or None. No host is
        dialled but the one that a volunteer is seen to dial from. A backbone is believed.
        """
        address: str | None = announced
        try:
            if request.certificate.role != BACKBONE:
                address = seen_address(request.source, announced)
            if address is not None:
                within, to = DIAL_BACK_SECONDS, request.sender
                asked = "records", AddressRecords(), AddressRecords
                await self.ask(address, *asked, within_seconds=within, recipient=to)
        except (*PEER_ERRORS, BadAddress):
            return None
        return address

    # --- answering -----------------------------------------------------------------------------

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handles one request of a peer. When the peer hangs up, its handler is cancelled."""
        certificate, source = certificate_at(writer), host_of(writer)
        sender = certificate.name
        async with contextlib.AsyncExitStack() as held:
            try:
                try:
                    held.enter_context(self._open_requests.connection(certificate.serial))
                    async with asyncio.timeout(HEADER_SECONDS):
                        content = await _frame(reader, REQUEST_BYTES)
                    header = decoded(content, Request)
                    sender = header.sender
                    body, handler = self._asked(header, certificate)
                    request = PeerRequest(header.sender, certificate, b"", source)
                    if header.payload_bytes:
                        await self._admit(reader, header, body, request)
                        await held.enter_async_context(self._open_requests.payload(request.sender))
                        payload = await self._receive(reader, header.payload_bytes)
                        request = request._replace(payload=payload)
                except DipacoError as error:
                    await self._refuse(writer, sender, error)
                    return
            except (OSError, asyncio.IncompleteReadError):
                return
            async with side_by_side(handler(body, request), reader.read(1)) as (handling, hung_up):
                await first_of(handling, hung_up)
                if handling.done():
                    with contextlib.suppress(OSError):
                        await self._answer(writer, sender, handling)

    def _asked(self, header: Request, certificate: Certificate) -> tuple[Any, RequestHandler]:
        """The body of a request, and its handler. Raises `PEER_ERRORS`."""
        self.verifier.check(certificate, header.sender)
        self._open_requests.note_session(certificate.serial, header.sender)
        self.meter.charge("down", len(header.body))  # strangers use up nothing of the limit
        if header.recipient not in ("", self.name):
            raise SwarmRefuses(reason=OTHER_RECIPIENT)
        if header.method not in self._handlers:
            raise BadMessage(problem=f"there is no method `{header.method}`")
        if header.payload_bytes and header.method not in self._admits:
            problem = f"it would bring {header.payload_bytes} bytes, and `{header.method}` none"
            raise BadMessage(problem=problem)
        kind, handler = self._handlers[header.method]
        return decoded(header.body, kind), handler

    async def _admit(
        self, reader: asyncio.StreamReader, header: Request, body: Any, request: PeerRequest
    ) -> None:
        """Raises `BadMessage`, and the errors of the method's `admits`. A sender that is refused
        without a fault of its own sends its payload all the same, which is dropped, and reads why.
        """
        if header.payload_bytes > self.max_payload_bytes:
            raise BadMessage(problem=f"it would bring {header.payload_bytes} bytes")
        try:
            await self._admits[header.method](body, request)
        except SwarmRefuses:
            await self._receive(reader, header.payload_bytes, keeps=False)
            raise

    async def _answer(
        self, writer: asyncio.StreamWriter, sender: str, handled: asyncio.Task[PeerReply]
    ) -> None:
        try:
            body, payload = handled.result()
        except DipacoError as error:
            await self._refuse(writer, sender, error)
            return
        header = Reply(msgspec.msgpack.encode(body), payload_bytes=len(payload))
        await self._send(writer, msgspec.msgpack.encode(header), payload)

    async def _refuse(self, writer: asyncio.StreamWriter, sender: str, error: DipacoError) -> None:
        reason = printable(str(error.values.get("reason", error)))
        if isinstance(error, MessageRefused | BadMessage):
            self.on_refused(printable(sender), reason)
        await self._send(writer, msgspec.msgpack.encode(Reply(b"", reason)), b"")

    async def _tell_records(self, body: AddressRecords, request: PeerRequest) -> PeerReply:
        """Every peer that listens answers."""
        self.book.merge(body.records)
        return AddressRecords(records=self.book.records), b""

    # --- bytes ---------------------------------------------------------------------------------

    async def _send(
        self, writer: asyncio.StreamWriter, header: bytes, payload: bytes | memoryview
    ) -> None:
        """Sends a message. Its payload keeps to the link's limit. Raises `OSError`."""
        started = time.monotonic()
        self.meter.charge("up", len(header))
        writer.write(len(header).to_bytes(4, "big") + header)
        for offset in range(0, len(payload), CHUNK_BYTES):
            chunk = payload[offset : offset + CHUNK_BYTES]
            await self.meter.wait("up", len(chunk))
            writer.write(bytes(chunk))
            await _drained(writer)
        await _drained(writer)
        self.meter.sent(len(header) + len(payload), time.monotonic() - started)

    async def _receive(
        self, reader: asyncio.StreamReader, num_bytes: int, *, keeps: bool = True
    ) -> bytes:
        """A payload; empty unless it is kept. Raises `BadMessage`: it is too large."""
        if num_bytes > self.max_payload_bytes:
            raise BadMessage(problem=f"it would bring {num_bytes} bytes")
        content, started = bytearray(), time.monotonic()
        for offset in range(0, num_bytes, CHUNK_BYTES):
            async with asyncio.timeout(CHUNK_SECONDS):
                chunk = await reader.readexactly(min(CHUNK_BYTES, num_bytes - offset))
            await self.meter.wait("down", len(chunk))
            content += chunk if keeps else b""
        self.meter.received(num_bytes, time.monotonic() - started)
        return bytes(content)


def decoded(content: bytes, kind: type[Body]) -> Body:
    """Raises `BadMessage`."""
    try:
        return msgspec.msgpack.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadMessage(problem=str(error)) from error


async def _frame(reader: asyncio.StreamReader, max_bytes: int) -> bytes:
    """Raises `BadMessage`, OSError, asyncio.IncompleteReadError."""
    size = int.from_bytes(await reader.readexactly(4), "big")
    if size > max_bytes:
        raise BadMessage(problem=f"its header has {size} bytes")
    return await reader.readexactly(size)


async def _drained(writer: asyncio.StreamWriter) -> None:
    """Waits until data is sent. A peer that takes nothing would hold memory, and is cut off."""
    try:
        async with asyncio.timeout(CHUNK_SECONDS):
            await writer.drain()
    except TimeoutError:
        writer.transport.abort()
        raise
