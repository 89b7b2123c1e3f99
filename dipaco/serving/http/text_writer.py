"""Tokens of one choice, written as text: whole characters, up to a stop string, with logprobs.

A token's logprobs go out with its text, never before: what a stop string takes away takes them too.
"""

import collections
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dipaco.serving.loop import Token
from dipaco.serving.text import Characters, StopStrings


class Written(NamedTuple):
    """A token that stands in the text."""

    text: bytes
    logprob: float | None
    top: tuple[tuple[bytes, float], ...]  # the likeliest, best first
    offset: int  # letters of the text before it, or before the one that it is a part of


class Piece(NamedTuple):
    """What can be shown now."""

    text: str
    tokens: list[Written]


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
        self._held: collections.deque[Written] = collections.deque()

    @property
    def is_stopped(self) -> bool:
        """Whether a stop string has come."""
        return self._stops.is_met

    def echo(self, text: str, tokens: Iterable[Token]) -> Piece:
        """The prompt itself, which no stop string ends; to be called first."""
        characters, offset, written = Characters(), 0, []
        for token in tokens:
            some = self._token_bytes[token.id]
            written.append(self._written(token, offset + characters.is_broken_by(some)))
            offset += len(characters.add(some))
        self._num_read = self._num_shown = len(text)
        return Piece(text, written)

    def add(self, token: Token) -> Piece:
        """One token more."""
        some = self._token_bytes[token.id]
        offset = self._num_read + self._characters.is_broken_by(some)
        self._held.append(self._written(token, offset))
        return self._show(self._characters.add(some))

    def end(self) -> Piece:
        """What was held back, when nothing more comes."""
        piece = self._show(self._characters.end())
        if self.is_stopped:
            return piece
        rest = list(self._held)
        self._held.clear()
        return Piece(piece.text + self._stops.end(), piece.tokens + rest)

    def _show(self, text: str) -> Piece:
        self._num_read += len(text)
        sure = self._stops.add(text)
        self._num_shown += len(sure)
        shown = []
        while self._held and self._held[0].offset < self._num_shown:
            shown.append(self._held.popleft())
        return Piece(sure, shown)

    def _written(self, token: Token, offset: int) -> Written:
        top = tuple((self._token_bytes[other], logprob) for other, logprob in token.top)
        return Written(self._token_bytes[token.id], token.logprob, top, offset)
