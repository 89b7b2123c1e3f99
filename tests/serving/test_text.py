"""Tokens to text: joined, the pieces equal decoding everything at once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dipaco.data.config import END_OF_TEXT
from dipaco.data.tokenizer import load_tokenizer, train_tokenizer
from dipaco.serving.decoding.stream import Token
from dipaco.serving.text import Characters, StopStrings, TextWriter, shown, token_bytes

TEXT = "Naïve 😀 שלום, the cat sat on the mat. 日本語 the end\n\n"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    return train_tokenizer([TEXT] * 4, 300, file)


def test_the_bytes_of_the_tokens_are_the_bytes_of_the_text(tokenizer):
    pieces = token_bytes(tokenizer, tokenizer.vocab_size)
    (ids,) = tokenizer.encode([TEXT])
    assert b"".join(pieces[i] for i in ids) == TEXT.encode()
    assert pieces[0] == END_OF_TEXT.encode()
    assert len(pieces) == tokenizer.vocab_size


@given(st.lists(st.integers(0, 255), max_size=40))
def test_tokens_added_one_by_one_give_the_text_that_the_tokenizer_decodes(tokenizer, ids):
    pieces, characters = token_bytes(tokenizer, tokenizer.vocab_size), Characters()
    parts = [characters.add(pieces[i]) for i in ids]
    assert "".join(parts) + characters.end() == tokenizer.decode(ids)


def test_a_character_comes_out_when_it_is_complete():
    characters = Characters()
    assert [characters.add(bytes([byte])) for byte in "😀a".encode()] == ["", "", "", "😀", "a"]


def test_sentencepiece_spellings_of_spaces_and_lone_bytes_are_understood(tmp_path):
    import tokenizers

    vocabulary = {"<unk>": 0, "<0xF0>": 1, "<0x9F>": 2, "\u2581the": 3, "cat": 4}
    library = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab=vocabulary, merges=[], byte_fallback=True)
    )
    decoders = tokenizers.decoders
    library.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback()])
    library.save(str(tmp_path / "tokenizer.json"))
    pieces = token_bytes(load_tokenizer(tmp_path / "tokenizer.json"), len(vocabulary))
    assert pieces == (b"<unk>", b"\xf0", b"\x9f", b" the", b"cat")


few_letters = st.text("ab", max_size=12)


@given(st.lists(few_letters, max_size=6), st.lists(st.text("ab", min_size=1, max_size=4)))
def test_text_is_cut_where_the_first_complete_stop_string_begins(pieces, stops):
    finder, out = StopStrings(stops), []
    for piece in pieces:
        out.append(finder.add(piece))
        # Text that came out is before any stop string that can still come.
        assert not any("".join(out).count(stop) for stop in stops)
    text = "".join(pieces)
    complete = [
        (end, end - len(stop))
        for end in range(len(text) + 1)
        for stop in stops
        if text[:end].endswith(stop)
    ]
    assert "".join(out) + finder.end() == (text[: min(complete)[1]] if complete else text)
    assert finder.is_met == bool(complete)


def test_a_possible_stop_string_is_held_and_released_when_it_is_none():
    finder = StopStrings(["\n\nHuman:"])
    assert [finder.add(text) for text in ("Yes.\n", "\nHum", "ming")] == ["Yes.", "", "\n\nHumming"]
    assert (finder.add(" on\n\n"), finder.end()) == (" on", "\n\n")


def test_long_stop_strings_cost_no_more_than_short_ones():
    """Counted in characters compared, not in time."""

    class Counted(str):
        compared = 0

        def __getitem__(self, index):
            Counted.compared += 1
            return str.__getitem__(self, index)

    finder = StopStrings([Counted("a" * 999 + str(n)) for n in range(10)])
    Counted.compared = 0
    text = "a" * 998 + "b" + "a" * 3001
    pieces = [finder.add(text[n : n + 4]) for n in range(0, len(text), 4)]
    assert "".join(pieces) + finder.end() == text
    assert Counted.compared <= 3 * 10 * len(text)


def test_a_token_that_is_not_text_is_shown_as_bytes():
    assert shown("né".encode()) == "né"
    assert shown(b"\xe2\x80") == "bytes:\\xe2\\x80"


# --- the character that a token begins in -----------------------------------------------------

some_bytes = st.one_of(
    st.sampled_from([piece.encode() for piece in ("a", "é", "€", "😀", "ab")]),
    st.sampled_from([b"\xe2", b"\x82", b"\xac", b"\xf0\x9f", b"\x98", b"\xc3", b"\xff", b"\xe0"]),
)


def character_of_each_byte(text):
    """The index of the character that each byte belongs to, decoding all at once."""
    characters, place = [], 0
    while place < len(text):
        try:
            size = len(text[place:].decode()[0].encode())
        except UnicodeDecodeError as error:
            whole = text[place : place + error.start].decode()
            size = len(whole[0].encode()) if whole else error.end
        characters += [characters[-1] + 1 if characters else 0] * size
        place += size
    return characters


@given(st.lists(some_bytes, min_size=1, max_size=8))
def test_the_offset_of_a_token_is_the_character_of_its_first_byte(pieces):
    writer = TextWriter(pieces)
    tokens = [Token(number, 0.0, ()) for number in range(len(pieces))]
    written = [writer.add(token) for token in tokens] + [writer.end()]
    text = b"".join(pieces)
    assert "".join(piece.text for piece in written) == text.decode(errors="replace")
    characters, begins = (
        character_of_each_byte(text),
        [len(b"".join(pieces[:n])) for n in range(len(pieces))],
    )
    offsets = [token.offset for piece in written for token in piece.tokens]
    assert offsets == [characters[begin] for begin in begins]
    echoed = TextWriter(pieces).echo(text.decode(errors="replace"), tokens)
    assert [token.offset for token in echoed.tokens] == offsets


def test_a_token_after_half_a_character_has_the_offset_after_it():
    writer = TextWriter([b"\xe2", b"x"])
    assert writer.add(Token(0, 0.0, ())).tokens == []
    piece = writer.add(Token(1, 0.0, ()))
    assert piece.text == "\ufffdx"
    assert [token.offset for token in piece.tokens] == [0, 1]
