"""One active request: its tokens so far, its row of the cache, its state in its grammar."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from dipaco.serving.decoding.grammar import GrammarState
from dipaco.serving.decoding.stream import Finish, Stream, Token
from dipaco.serving.errors import GrammarFailed


@dataclasses.dataclass(eq=False)
class BatchRow:
    """One active request."""

    stream: Stream
    pool_row: int  # its row of the cache pool
    tokens: list[int]  # prompt and continuation
    max_tokens: int  # at most, both together
    uniforms: np.ndarray  # float32 [more than max_tokens, 2]: its draws, by position
    grammar: GrammarState | None = None  # state of the text that it makes
    mask_number: int = 0  # number of the mask with which its block draws
    num_unread: int = 1  # last tokens that are not in the cache
    number: int = dataclasses.field(default_factory=itertools.count().__next__)  # no other has it

    def put(self, tokens: Sequence[Token]) -> tuple[int, Finish | None]:
        """Puts tokens of its block into the stream, up to its end or to one that is drawn again.
        Then it puts the rest of the text, if its grammar knows it all.

        Returns:
          The number of tokens, and the end if the last of them ended the text.
        """
        taken, finish = [], None
        try:
            for token in itertools.chain(itertools.takewhile(self.takes, tokens), self._rest()):
                taken.append(token)
                if finish := self.add(token):
                    break
        finally:  # the tokens so far, even if a later one failed
            if taken:
                self.stream.put(taken)
        return len(taken), finish

    def takes(self, token: Token) -> bool:
        """True if a token of its block equals the one that is drawn alone. Otherwise its grammar's
        mask has changed since the block began, and the token is drawn again.
        """
        return self.grammar is None or self.grammar.knows(token.id, self.mask_number)

    def _rest(self) -> Iterator[Token]:
        """The tokens after which the text is over, where nothing else may come: no step need read
        them, except for their log-probabilities.
        """
        if self.grammar is None or self.stream.request.num_logprobs is not None:
            return
        while self.grammar.is_over and self.grammar.forced:
            self.num_unread += 1
            yield Token(self.grammar.forced[0])

    def add(self, token: Token) -> Finish | None:
        """Returns the end where this token was the last."""
        self.tokens.append(token.id)
        if token.id in self.stream.request.stop_ids:
            return Finish("stop")
        if self.grammar is not None:
            try:
                self.grammar.add(token.id)
            except GrammarFailed as error:
                return Finish("error", error)
            if self.grammar.is_complete:
                return Finish("stop")
        return Finish("length") if len(self.tokens) >= self.max_tokens else None
