"""Which letter a token begins in, when characters are spread over tokens, or never come whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("starlette", reason="HTTP needs the `serve` extra")

from dipaco.serving.http.text_writer import TextWriter
from dipaco.serving.stream import Token

some_bytes = st.one_of(
    st.sampled_from([piece.encode() for piece in ("a", "é", "€", "😀", "ab")]),
    st.sampled_from([b"\xe2", b"\x82", b"\xac", b"\xf0\x9f", b"\x98", b"\xc3", b"\xff", b"\xe0"]),
)


def letter_of_each_byte(text):
    """Of bytes that are decoded at once."""
    letters, place = [], 0
    while place < len(text):
        try:
            size = len(text[place:].decode()[0].encode())
        except UnicodeDecodeError as error:
            whole = text[place : place + error.start].decode()
            size = len(whole[0].encode()) if whole else error.end
        letters += [letters[-1] + 1 if letters else 0] * size
        place += size
    return letters


@given(st.lists(some_bytes, min_size=1, max_size=8))
def test_a_token_says_the_letter_that_its_first_byte_is_of(pieces):
    writer = TextWriter(pieces)
    tokens = [Token(number, 0.0, ()) for number in range(len(pieces))]
    shown = [writer.add(token) for token in tokens] + [writer.end()]
    text = b"".join(pieces)
    assert "".join(piece.text for piece in shown) == text.decode(errors="replace")
    letters, begins = (
        letter_of_each_byte(text),
        [len(b"".join(pieces[:n])) for n in range(len(pieces))],
    )
    said = [token.offset for piece in shown for token in piece.tokens]
    assert said == [letters[begin] for begin in begins]
    echoed = TextWriter(pieces).echo(text.decode(errors="replace"), tokens)
    assert [token.offset for token in echoed.tokens] == said


def test_a_token_that_comes_after_half_a_character_stands_after_it():
    writer = TextWriter([b"\xe2", b"x"])
    assert writer.add(Token(0, 0.0, ())).tokens == []
    piece = writer.add(Token(1, 0.0, ()))
    assert piece.text == "\ufffdx"
    assert [token.offset for token in piece.tokens] == [0, 1]
