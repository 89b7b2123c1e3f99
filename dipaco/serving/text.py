"""Tokens to text, one by one: whole characters only, cut exactly where a stop string begins.

A token is bytes, not text: a character may span several tokens, and so may a stop string. Bytes are
held until they make a character, and text is held while it may begin a stop string. The pieces,
joined, equal decoding all tokens at once and cutting there. One thing differs: where byte tokens
such as `<0xE2>` make no character, a tokenizer decodes each of several side by side to U+FFFD, also
if some make a character. Here such characters are kept.
"""

import codecs
import collections
import functools
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from dipaco.data.tokenizer import Tokenizer
from dipaco.serving.decoding.request_queue import Token

REPLACEMENT = "\ufffd"  # in the place of bytes that are no character


class WordEnd(bytes):
    """The bytes of a token that ends a word: a space follows where another token does."""


def token_bytes(tokenizer: Tokenizer, size: int) -> tuple[bytes, ...]:
    """The bytes of every id below `size`, which may be more than the tokenizer has: a small text
    gives a small one, and checkpoints fill a vocabulary up. An id that is no token has none.

    These are exact for byte-level vocabularies (ours, GPT-2's, Llama 3's, Qwen's) and for
    vocabularies that write a space as U+2581 and lone bytes as `<0x0A>` (SentencePiece). Where the
    last token of a word has a suffix, such as `</w>`, it is a `WordEnd`. In others, for example of
    words (WordPiece, WordLevel), a token's bytes are the tokenizer's text for it after another one.
    """
    content = json.loads(tokenizer.library.to_str())
    special = {token["id"] for token in content["added_tokens"]}
    decoder = json.dumps(content["decoder"])
    is_byte_level, has_bytes = '"ByteLevel"' in decoder, '"ByteFallback"' in decoder
    suffix = (content["decoder"] or {}).get("suffix")  # the decoder is a `BPEDecoder`
    from_letter = _bytes_of_letters()

    def spelled(token_id: int) -> bytes:
        token = tokenizer.library.id_to_token(token_id)
        if token is None:
            return b""
        if suffix:
            some = token.replace(suffix, "").encode()
            return WordEnd(some) if token.endswith(suffix) else some
        if not (is_byte_level or has_bytes):
            first = tokenizer.decode([token_id])
            return tokenizer.decode([token_id, token_id]).removeprefix(first).encode()
        if token_id in special:
            return token.encode()
        if is_byte_level and from_letter.keys() >= set(token):  # else it is written as it is
            return bytes(from_letter[letter] for letter in token)
        if len(token) == 6 and token.startswith("<0x"):
            return bytes([int(token[3:5], 16)])
        return token.replace("\u2581", " ").encode()

    return tuple(spelled(token_id) for token_id in range(size))


def text_starts(tokenizer: Tokenizer, token_bytes: Sequence[bytes]) -> frozenset[int]:
    """The tokens after which a text begins without the space of its first word: the special ones,
    if the tokenizer leaves it out. Otherwise none.
    """
    added = json.loads(tokenizer.library.to_str())["added_tokens"]
    specials = frozenset(token["id"] for token in added if token["special"])
    with_space = (n for n, some in enumerate(token_bytes) if some[:1] == b" " and n not in specials)
    if (first := next(with_space, None)) is None:
        return frozenset()
    after_another = token_bytes[first].decode(errors="replace")
    return specials if tokenizer.decode([first]) != after_another else frozenset()


def _bytes_of_letters() -> dict[str, int]:
    """The spelling of bytes in byte-level vocabularies: Latin-1, or from U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(0x100 + index): byte for index, byte in enumerate(others)}


class Characters:
    """Bytes in, whole characters out. Bytes that cannot become a character come out as U+FFFD."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def is_broken_by(self, some: bytes) -> bool:
        """True if these bytes cannot continue the held ones, which then come out as one U+FFFD."""
        if not (held := self.held):
            return False
        try:
            codecs.utf_8_decode(held + some[:1], "strict", False)
        except UnicodeDecodeError:
            return True
        return False

    def add(self, some: bytes) -> str:
        return self._decoder.decode(some)

    @property
    def held(self) -> bytes:
        """The beginning of a character, at most 3 bytes."""
        return self._decoder.getstate()[0]

    def end(self) -> str:
        """The held bytes: a character that was never completed."""
        return self._decoder.decode(b"", final=True)


class StopStrings:
    """Text in, text out up to the first stop string, which is left out.

    Each character is read once, however long the stop strings are (Knuth, Morris and Pratt 1977).
    """

    def __init__(self, stops: Sequence[str]):
        self._stops = [(stop, _borders(stop)) for stop in stops]
        self._begun = [0] * len(stops)  # characters of each stop string that the text ends with
        self._held = ""  # may be the beginning of a stop string
        self.is_met = False

    def add(self, text: str) -> str:
        """The text that is certain to come before any stop string."""
        if self.is_met:
            return ""
        if not self._stops:
            return text
        num_before = len(self._held)
        self._held += text
        for end, character in enumerate(text, num_before + 1):
            self._read(character)
            # The one that completes first wins, as if characters came one by one. Else the longest.
            begun = zip(self._stops, self._begun, strict=True)
            met = [number for (stop, _), number in begun if number == len(stop)]
            if met:
                self.is_met = True
                certain, self._held = self._held[: end - max(met)], ""
                return certain
        end = len(self._held) - max(self._begun)
        certain, self._held = self._held[:end], self._held[end:]
        return certain

    def _read(self, character: str) -> None:
        for index, (stop, borders) in enumerate(self._stops):
            number = self._begun[index]
            while number and stop[number] != character:
                number = borders[number - 1]
            self._begun[index] = number + (stop[number] == character)

    def end(self) -> str:
        """The held text, when no more comes."""
        held, self._held = self._held, ""
        return held


@functools.lru_cache(256)  # the choices of a request have the same
def _borders(stop: str) -> tuple[int, ...]:
    """For each beginning of a string, how many characters at its end begin the string too."""
    borders = [0] * len(stop)
    for index in range(1, len(stop)):
        number = borders[index - 1]
        while number and stop[number] != stop[index]:
            number = borders[number - 1]
        borders[index] = number + (stop[number] == stop[index])
    return tuple(borders)


def shown(some: bytes) -> str:
    """A token as `logprobs` shows it: its text, or `bytes:\\xe2\\x80` if it is not text."""
    try:
        return some.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in some)


def _bytes_of(token_bytes: Sequence[bytes], ids: Iterable[int]) -> Iterator[bytes]:
    """The bytes of a text, token by token."""
    space = b""
    for token_id in ids:
        yield space + token_bytes[token_id]
        space = _space_after(token_bytes[token_id])


def _space_after(some: bytes) -> bytes:
    return b" " if isinstance(some, WordEnd) else b""


def _num_spaces_before(text: str) -> int:
    return len(text) - len(text.lstrip(" "))


def _last_bytes(token_bytes: Sequence[bytes], ids: Sequence[int]) -> bytes:
    """The last bytes of a text: enough to see the character that it ends within."""
    some = b""
    for token_id in reversed(ids):
        some = token_bytes[token_id] + some
        if len(some) >= 3:
            break
    return some


class WrittenToken(NamedTuple):
    """A token of the text."""

    text: bytes
    logprob: float | None
    top: tuple[tuple[bytes, float], ...]  # the likeliest, best first
    offset: int  # position of its first character in the text


class TextPiece(NamedTuple):
    """Text that is certain now, and its tokens."""

    text: str
    tokens: list[WrittenToken]


class TextWriter:
    """Writes the tokens of one choice as text, with offsets and log-probabilities.

    A token is released with its text, never before: a stop string removes its tokens too. A prompt
    of token ids may end within a character. A completed character belongs to this text. Otherwise
    its U+FFFD belongs to the prompt. After `starts`, from `text_starts`, the first space is left
    out. It stays after an echo.
    """

    def __init__(
        self,
        token_bytes: Sequence[bytes],
        stops: Sequence[str] = (),
        prompt_ids: Sequence[int] = (),
        starts: frozenset[int] = frozenset(),
    ):
        self._token_bytes, self._prompt_ids = token_bytes, prompt_ids
        self._characters, self._stops = Characters(), StopStrings(stops)
        self._characters.add(_last_bytes(token_bytes, prompt_ids))
        self._is_within = bool(self._characters.held)  # a character of the prompt
        self._space = _space_after(token_bytes[prompt_ids[-1]]) if len(prompt_ids) else b""
        self._is_first = len(prompt_ids) > 0 and prompt_ids[-1] in starts
        self._is_echoed = False
        self._num_read = self._num_shown = 0  # characters
        self._held: collections.deque[WrittenToken] = collections.deque()

    @property
    def is_stopped(self) -> bool:
        """True if a stop string was found."""
        return self._stops.is_met

    def echo(self, text: str, tokens: Iterable[Token]) -> TextPiece:
        """Writes the prompt, which no stop string ends. It is called first.

        Args:
          text: as given, or decoded. Where ids end within a character, or have another number of
            U+FFFD as bytes, their bytes are shown instead.
          tokens: of the prompt, all or none.
        """
        characters, whole, offsets = Characters(), "", []
        for some in _bytes_of(self._token_bytes, self._prompt_ids):
            offsets.append(len(whole) + characters.is_broken_by(some))
            whole += characters.add(some)
        # The tokenizer may put a space before a text, which it leaves out again.
        num_left_out = max(0, _num_spaces_before(whole) - _num_spaces_before(text))
        if self._is_within or 0 < whole.count(REPLACEMENT) != text.count(REPLACEMENT):
            text = whole[num_left_out:]
        for token, offset in zip(tokens, offsets, strict=False):
            self._held.append(self._written(token, max(0, offset - num_left_out)))
        self._is_echoed, self._is_first = True, False
        self._num_read = self._num_shown = len(text)
        return TextPiece(text, self._released() if self._is_within else self._rest())

    def add(self, token: Token) -> TextPiece:
        """Adds a token."""
        some = self._space + self._token_bytes[token.id]
        self._space = _space_after(self._token_bytes[token.id])
        if self._is_first and some:
            self._is_first, some = False, some.removeprefix(b" ")
        offset = self._num_read
        if self._is_echoed or not self._is_within:
            offset += self._characters.is_broken_by(some)
        self._held.append(self._written(token, offset))
        return self._show(self._characters.add(some))

    def end(self) -> TextPiece:
        """The held text, when no more tokens come."""
        piece = self._show(self._characters.end())
        if self.is_stopped:
            return piece
        return TextPiece(piece.text + self._stops.end(), piece.tokens + self._rest())

    def _show(self, text: str) -> TextPiece:
        of_prompt = ""
        if text and self._is_within:
            self._is_within = False
            if text[0] == REPLACEMENT:
                of_prompt, text = REPLACEMENT if self._is_echoed else "", text[1:]
        certain = of_prompt + self._stops.add(text)
        self._num_read += len(of_prompt + text)
        self._num_shown += len(certain)
        return TextPiece(certain, self._released())

    def _released(self) -> list[WrittenToken]:
        tokens = []
        while self._held and self._held[0].offset < self._num_shown:
            tokens.append(self._held.popleft())
        return tokens

    def _rest(self) -> list[WrittenToken]:
        rest = list(self._held)
        self._held.clear()
        return rest

    def _written(self, token: Token, offset: int) -> WrittenToken:
        top = tuple((self._token_bytes[other], logprob) for other, logprob in token.top)
        return WrittenToken(self._token_bytes[token.id], token.logprob, top, offset)
