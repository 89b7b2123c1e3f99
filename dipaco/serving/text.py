"""Text that grows token by token: whole characters only, cut exactly where a stop string begins.

A token is bytes, not text: a character may be spread over several tokens, and a stop string too. So
bytes wait until they make a character, and text waits while it may be the beginning of a stop
string. What comes out, joined, is what decoding all tokens at once and cutting there would give.
"""

import codecs
import collections
import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dipaco.data.tokenizer import Tokenizer
from dipaco.serving.decoding.stream import Token


def token_bytes(tokenizer: Tokenizer) -> tuple[bytes, ...]:
    """The bytes of every token id.

    For byte-level vocabularies (ours, GPT-2's, Llama 3's, Qwen's) and those that write a space as
    U+2581 and lone bytes as `<0x0A>` (SentencePiece).
    """
    content = json.loads(tokenizer.library.to_str())
    special = {token["id"] for token in content["added_tokens"]}
    is_byte_level = '"ByteLevel"' in json.dumps(content["decoder"])
    from_letter = _bytes_of_letters()

    def spelled(token_id: int) -> bytes:
        token = tokenizer.library.id_to_token(token_id)
        if token is None:  # ids may have holes
            return b""
        if token_id in special:
            return token.encode()
        if is_byte_level:
            return bytes(from_letter[letter] for letter in token)
        if len(token) == 6 and token.startswith("<0x"):
            return bytes([int(token[3:5], 16)])
        return token.replace("\u2581", " ").encode()

    return tuple(spelled(token_id) for token_id in range(tokenizer.vocab_size))


def _bytes_of_letters() -> dict[str, int]:
    """How byte-level vocabularies write bytes: printable ones of Latin-1 as themselves, the others
    in order from U+0100.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(0x100 + place): byte for place, byte in enumerate(others)}


class Characters:
    """Bytes in, whole characters out; bytes that can never make one come out as U+FFFD."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def is_broken_by(self, some: bytes) -> bool:
        """Whether these bytes cannot go on with what is held back, which comes out as one U+FFFD
        before them.
        """
        held, _ = self._decoder.getstate()
        try:
            codecs.utf_8_decode(held + some[:1], "strict", False)
        except UnicodeDecodeError:
            return bool(held)
        return False

    def add(self, some: bytes) -> str:
        return self._decoder.decode(some)

    def end(self) -> str:
        """What was held back: a character that never became whole."""
        return self._decoder.decode(b"", final=True)


class StopStrings:
    """Text in, text out up to the first stop string, which is left out itself."""

    def __init__(self, stops: Sequence[str]):
        self._stops = stops
        self._held = ""  # may be the beginning of a stop string
        self.is_met = False

    def add(self, text: str) -> str:
        """The text that surely comes before any stop string."""
        if self.is_met:
            return ""
        self._held += text
        found = [(self._held.find(stop), stop) for stop in self._stops if stop in self._held]
        if found:
            self.is_met = True
            # The one that is whole first, as if letters came one by one.
            _, begin = min((place + len(stop), place) for place, stop in found)
            sure, self._held = self._held[:begin], ""
            return sure
        keep = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        end = len(self._held) - keep
        sure, self._held = self._held[:end], self._held[end:]
        return sure

    def end(self) -> str:
        """What was held back, now that nothing more comes."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Letters at the end of `text` that are the beginning of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)


def shown(some: bytes) -> str:
    """A token as `logprobs` names it: its text, or `bytes:\\xe2\\x80` where it is not text."""
    try:
        return some.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in some)


class WrittenToken(NamedTuple):
    """A token that stands in the text."""

    text: bytes
    logprob: float | None
    top: tuple[tuple[bytes, float], ...]  # the likeliest, best first
    offset: int  # letters of the text before it, or before the one that it is a part of


class TextPiece(NamedTuple):
    """What can be shown now."""

    text: str
    tokens: list[WrittenToken]


class TextWriter:
    """One text that grows.

    Args:
      token_bytes: the bytes of every token id.
      stops: strings that end the text; they are left out.
    """

    def __init__(self, token_bytes: Sequence[bytes], stops: Sequence[str] = ()):
        self._token_bytes = token_bytes
        self._characters, self._stops = Characters(), StopStrings(stops)
        self._num_read = self._num_shown = 0  # letters
        self._held: collections.deque[WrittenToken] = collections.deque()

    @property
    def is_stopped(self) -> bool:
        """Whether a stop string has come."""
        return self._stops.is_met

    def echo(self, text: str, tokens: Iterable[Token]) -> TextPiece:
        """The prompt itself, which no stop string ends; to be called first."""
        characters, offset, written = Characters(), 0, []
        for token in tokens:
            some = self._token_bytes[token.id]
            written.append(self._written(token, offset + characters.is_broken_by(some)))
            offset += len(characters.add(some))
        self._num_read = self._num_shown = len(text)
        return TextPiece(text, written)

    def add(self, token: Token) -> TextPiece:
        """One token more."""
        some = self._token_bytes[token.id]
        offset = self._num_read + self._characters.is_broken_by(some)
        self._held.append(self._written(token, offset))
        return self._show(self._characters.add(some))

    def end(self) -> TextPiece:
        """What was held back, when nothing more comes."""
        piece = self._show(self._characters.end())
        if self.is_stopped:
            return piece
        rest = list(self._held)
        self._held.clear()
        return TextPiece(piece.text + self._stops.end(), piece.tokens + rest)

    def _show(self, text: str) -> TextPiece:
        self._num_read += len(text)
        sure = self._stops.add(text)
        self._num_shown += len(sure)
        shown = []
        while self._held and self._held[0].offset < self._num_shown:
            shown.append(self._held.popleft())
        return TextPiece(sure, shown)

    def _written(self, token: Token, offset: int) -> WrittenToken:
        top = tuple((self._token_bytes[other], logprob) for other, logprob in token.top)
        return WrittenToken(self._token_bytes[token.id], token.logprob, top, offset)
