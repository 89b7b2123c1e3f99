"""Text that grows: held back or not, joined it is what decoding everything at once gives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dipaco.data.tokenizer import PADDING, load_tokenizer, train_tokenizer
from dipaco.serving.text import Characters, StopStrings, shown, token_bytes

TEXT = "Naïve 😀 שלום, the cat sat on the mat. 日本語 the end\n\n"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    return train_tokenizer([TEXT] * 4, 300, file)


def test_the_bytes_of_tokens_are_the_bytes_of_the_text(tokenizer):
    pieces = token_bytes(tokenizer)
    (ids,) = tokenizer.encode([TEXT])
    assert b"".join(pieces[i] for i in ids) == TEXT.encode()
    assert pieces[0] == PADDING.encode()
    assert len(pieces) == tokenizer.vocab_size


@given(st.lists(st.integers(0, 255), max_size=40))
def test_any_tokens_added_one_by_one_are_the_text_that_the_tokenizer_decodes(tokenizer, ids):
    pieces, characters = token_bytes(tokenizer), Characters()
    parts = [characters.add(pieces[i]) for i in ids]
    assert "".join(parts) + characters.end() == tokenizer.decode(ids)


def test_a_character_comes_when_it_is_whole():
    characters = Characters()
    assert [characters.add(bytes([byte])) for byte in "😀a".encode()] == ["", "", "", "😀", "a"]


def test_sentencepiece_vocabularies_spell_spaces_and_lone_bytes_their_own_way(tmp_path):
    import tokenizers

    vocabulary = {"<unk>": 0, "<0xF0>": 1, "<0x9F>": 2, "\u2581the": 3, "cat": 4}
    library = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab=vocabulary, merges=[], byte_fallback=True)
    )
    decoders = tokenizers.decoders
    library.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback()])
    library.save(str(tmp_path / "tokenizer.json"))
    pieces = token_bytes(load_tokenizer(tmp_path / "tokenizer.json"))
    assert pieces == (b"<unk>", b"\xf0", b"\x9f", b" the", b"cat")


few_letters = st.text("ab", max_size=12)


@given(st.lists(few_letters, max_size=6), st.lists(st.text("ab", min_size=1, max_size=4)))
def test_text_is_cut_where_the_first_whole_stop_string_begins_however_it_arrives(pieces, stops):
    finder, out = StopStrings(stops), []
    for piece in pieces:
        out.append(finder.add(piece))
        # Whatever is out is before any stop string that can still come.
        assert not any("".join(out).count(stop) for stop in stops)
    text = "".join(pieces)
    whole = [
        (end, end - len(stop))
        for end in range(len(text) + 1)
        for stop in stops
        if text[:end].endswith(stop)
    ]
    assert "".join(out) + finder.end() == (text[: min(whole)[1]] if whole else text)
    assert finder.is_met == bool(whole)


def test_what_may_be_a_stop_string_waits_and_comes_when_it_is_none():
    finder = StopStrings(["\n\nHuman:"])
    assert [finder.add(text) for text in ("Yes.\n", "\nHum", "ming")] == ["Yes.", "", "\n\nHumming"]
    assert (finder.add(" on\n\n"), finder.end()) == (" on", "\n\n")


def test_a_token_that_is_no_text_is_shown_as_bytes():
    assert shown("né".encode()) == "né"
    assert shown(b"\xe2\x80") == "bytes:\\xe2\\x80"
