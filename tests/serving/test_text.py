"""Tokens to text: joined, the pieces equal decoding everything at once, as bytes."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers

from dipaco.data.config import END_OF_TEXT
from dipaco.data.tokenizer import load_tokenizer, train_tokenizer
from dipaco.serving.decoding.request_queue import Token
from dipaco.serving.text import (
    REPLACEMENT,
    Characters,
    StopStrings,
    TextWriter,
    shown,
    text_starts,
    token_bytes,
)

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


WORDS = [
    "[UNK]",
    "the",
    "cat",
    "##s",
    "##ing",
    ".",
    "'",
    "é",
    "\u2581the",
    "\u2581a",
    "n't",
    "\u2581",
]


def of_words(kind):
    """A tokenizer whose tokens are words or pieces of them, written by a decoder of its own."""
    ids = {word: number for number, word in enumerate(WORDS)}
    match kind:
        case "WordPiece":
            library = Tokenizer(models.WordPiece(vocab=ids, unk_token="[UNK]"))
            library.decoder = decoders.WordPiece()
        case "WordLevel":
            library = Tokenizer(models.WordLevel(vocab=ids, unk_token="[UNK]"))
        case "Metaspace":
            scored = [(word, -1.0) for word in WORDS]
            library = Tokenizer(models.Unigram(scored, unk_id=0))
            library.decoder = decoders.Metaspace()
    library.add_special_tokens(["[END]"])
    return library


def loaded(library, folder):
    library.save(str(folder / "tokenizer.json"))
    return load_tokenizer(folder / "tokenizer.json")


def written(tokenizer, prompt, made, *, has_echo=False, starts=()):
    """The text of the tokens made, after the prompt's."""
    pieces = token_bytes(tokenizer, tokenizer.vocab_size)
    writer, text = TextWriter(pieces, (), prompt, starts), ""
    if has_echo:
        text = writer.echo(tokenizer.decode(prompt), [Token(each) for each in prompt]).text
    return text + "".join(writer.add(Token(each)).text for each in made) + writer.end().text


@pytest.mark.parametrize("kind", ["WordPiece", "WordLevel", "Metaspace"])
def test_words_are_written_as_the_tokenizer_decodes_them(kind, tmp_path):
    tokenizer, rng = loaded(of_words(kind), tmp_path), random.Random(0)
    size = tokenizer.vocab_size
    assert size == len(WORDS) + 1
    assert token_bytes(tokenizer, size + 1)[size] == b""
    for _ in range(300):
        prompt, made = rng.choices(range(size), k=3), rng.choices(range(size), k=rng.randrange(9))
        whole = tokenizer.decode(prompt + made)
        assert tokenizer.decode(prompt) + written(tokenizer, prompt, made) == whole


def of_spaces_and_bytes(words=("\u2581a", "b")):
    """As Llama 2's: byte n is the id n after the words."""
    tokens = [*words, *(f"<0x{byte:02X}>" for byte in range(256))]
    ids = {token: number for number, token in enumerate(tokens)}
    library = Tokenizer(models.BPE(vocab=ids, merges=[], byte_fallback=True, unk_token=words[-1]))
    spaces, strip = decoders.Replace("\u2581", " "), decoders.Strip(" ", 1, 0)
    library.decoder = decoders.Sequence([spaces, decoders.ByteFallback(), decoders.Fuse(), strip])
    return library


@pytest.mark.parametrize("text", ["ab a", " ab a", "  ab a", " ", "a "])
def test_an_echoed_text_may_begin_with_a_space_beside_that_of_its_tokenizer(text, tmp_path):
    """As Llama 2's, which puts one before every text."""
    library = of_spaces_and_bytes(["\u2581", "a", "b"])
    before, spaces = normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")
    library.normalizer = normalizers.Sequence([before, spaces])
    tokenizer = loaded(library, tmp_path)
    (ids,), pieces = tokenizer.encode([text]), token_bytes(tokenizer, tokenizer.vocab_size)
    assert b"".join(pieces[each] for each in ids).decode() == " " + text
    writer = TextWriter(pieces, (), ids)
    echoed, added = writer.echo(text, [Token(each) for each in ids]), writer.add(Token(1))
    assert echoed.text + added.text == text + "a"
    offsets = [token.offset for token in echoed.tokens + added.tokens]
    assert offsets == [0, *range(len(text) + 1)]


@pytest.mark.parametrize("invalid", [b"\xff", b"\xc5\xd7\x14", b"\xf0\x9f\x98"])
def test_an_echoed_prompt_of_bytes_that_are_no_character_is_shown_as_its_answer_is(
    invalid, tmp_path
):
    """The tokenizer decodes each byte of such a run to U+FFFD, those of characters beside too."""
    tokenizer = loaded(of_spaces_and_bytes(), tmp_path)
    pieces, some = token_bytes(tokenizer, tokenizer.vocab_size), "€".encode() + invalid
    ids = [0, *(2 + byte for byte in some), 1, 0]
    decoded, text = tokenizer.decode(ids), f"a{some.decode(errors='replace')}b a"
    assert decoded == f"a{REPLACEMENT * len(some)}b a" != text
    for cut in range(1, len(ids) + 1):
        tokens, writer = [Token(each) for each in ids], TextWriter(pieces, (), ids[:cut])
        parts = [writer.echo(tokenizer.decode(ids[:cut]), tokens[:cut])]
        parts += [*map(writer.add, tokens[cut:]), writer.end()]
        assert "".join(part.text for part in parts) == text
        offsets = [token.offset for part in parts for token in part.tokens]
        assert offsets[-2:] == [len(text) - 3, len(text) - 2]


def test_an_echoed_text_is_shown_as_it_was_given(tmp_path):
    """Even where it has U+FFFD, and its tokenizer spells that or not."""
    given = f"cat {REPLACEMENT}"
    for library in (of_spaces_and_bytes(["cat", " "]), of_words("WordLevel")):
        tokenizer = loaded(library, tmp_path)
        (ids,), pieces = tokenizer.encode([given]), token_bytes(tokenizer, tokenizer.vocab_size)
        assert TextWriter(pieces, (), ids).echo(given, ()).text == given


def test_a_space_follows_the_last_piece_of_a_word_where_a_token_does(tmp_path):
    tokens = ["hel", "lo</w>", "world</w>", ".</w>", "<end>"]
    ids = {token: number for number, token in enumerate(tokens)}
    library = Tokenizer(models.BPE(vocab=ids, merges=[], end_of_word_suffix="</w>"))
    library.decoder = decoders.BPEDecoder()
    library.add_special_tokens(["<end>"])
    tokenizer = loaded(library, tmp_path)
    assert token_bytes(tokenizer, 2) == (b"hel", b"lo")
    assert tokenizer.decode([0, 1, 2]) == "hello world"
    rng = random.Random(0)
    for _ in range(200):
        prompt, made = rng.choices(range(5), k=rng.randrange(4)), rng.choices(range(5), k=5)
        whole = tokenizer.decode(prompt + made)
        assert written(tokenizer, prompt, made, has_echo=True) == whole
        assert tokenizer.decode(prompt) + written(tokenizer, prompt, made) == whole


@pytest.mark.parametrize("kind", ["WordPiece", "WordLevel", "Metaspace", "Llama"])
def test_a_text_begins_without_the_space_that_its_tokenizer_leaves_out(kind, tmp_path):
    library = of_spaces_and_bytes() if kind == "Llama" else of_words(kind)
    library.add_special_tokens(["<start>"])
    tokenizer = loaded(library, tmp_path)
    start, word = library.token_to_id("<start>"), WORDS.index("\u2581a")
    made = [0, 1, 0] if kind == "Llama" else [word, 1, 2]
    starts = text_starts(tokenizer, token_bytes(tokenizer, tokenizer.vocab_size))
    assert start in starts
    for prompt in ([start], [made[0], start]):
        assert written(tokenizer, prompt, made, starts=starts) == tokenizer.decode(made)
        # An echoed one is of the text before it.
        whole = tokenizer.decode(prompt + made)
        assert written(tokenizer, prompt, made, has_echo=True, starts=starts) == whole
    once, twice = tokenizer.decode(made[:1]), tokenizer.decode(made[:1] * 2)
    assert once + written(tokenizer, made[:1], made[:1], starts=starts) == twice


@pytest.mark.parametrize("first", ["\u2581\u2581", "\u2581", "\u2581a"])
def test_the_space_that_a_text_begins_without_is_found_by_any_token(first, tmp_path):
    """One of two spaces is written with one, after which nothing seems to be left out."""
    library = of_spaces_and_bytes([first])
    library.add_special_tokens(["<start>"])
    tokenizer = loaded(library, tmp_path)
    assert tokenizer.decode([0]) == first.replace("\u2581", " ")[1:]
    starts = text_starts(tokenizer, token_bytes(tokenizer, tokenizer.vocab_size))
    assert starts == {library.token_to_id("<start>")}


def test_a_space_that_the_tokenizer_writes_first_is_kept(tokenizer):
    starts = text_starts(tokenizer, token_bytes(tokenizer, tokenizer.vocab_size))
    assert not starts
    (ids,) = tokenizer.encode([" the cat"])
    assert written(tokenizer, [0], ids, starts=starts) == " the cat"


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
    writer = TextWriter(pieces, (), range(len(pieces)))
    echoed = [writer.echo(text.decode(errors="replace"), tokens), writer.end()]
    assert [token.offset for piece in echoed for token in piece.tokens] == offsets


@given(
    st.lists(some_bytes, min_size=1, max_size=5),
    st.lists(some_bytes, max_size=6),
    st.booleans(),
    st.booleans(),
)
def test_a_prompt_that_ends_within_a_character_goes_on_with_it(prompt, made, has_echo, has_stop):
    """Joined, the pieces are all tokens decoded at once, or what that has after the prompt's."""
    pieces, num_prompt = prompt + made, len(prompt)
    tokens = [Token(number, 0.0, ()) for number in range(len(pieces))]
    text, begun = b"".join(pieces).decode(errors="replace"), b"".join(prompt)
    shown_prompt = begun.decode(errors="replace")
    stops = ["ab\ufffd"] if has_stop else []
    writer = TextWriter(pieces, stops, range(num_prompt))
    written = [writer.echo(shown_prompt, tokens[:num_prompt])] if has_echo else []
    for token in tokens[num_prompt:]:
        written.append(writer.add(token))
        if writer.is_stopped:
            break
    else:
        written.append(writer.end())
    own = text[len(shown_prompt) :]
    is_completed = text[: len(shown_prompt)] != shown_prompt
    if is_completed:  # the character is then of what was made
        own = text[len(shown_prompt) - 1 :]
    before = text[: len(text) - len(own)]
    expected = own.partition(stops[0])[0] if stops else own
    joined = "".join(piece.text for piece in written)
    assert joined == (before + expected if has_echo else expected)
    if not stops:
        offsets = [token.offset for piece in written for token in piece.tokens]
        places = character_of_each_byte(b"".join(pieces))
        begins = [len(b"".join(pieces[:number])) for number in range(len(pieces))]
        if has_echo:
            assert offsets == [places[begin] for begin in begins]
        else:
            expected_offsets = [places[begin] - len(before) for begin in begins[num_prompt:]]
            assert offsets == [max(0, offset) for offset in expected_offsets]
    num_shown = 0
    for piece in written:
        num_shown += len(piece.text)
        if piece is not written[-1]:
            assert all(token.offset < num_shown for token in piece.tokens)


def test_a_character_of_prompt_and_answer_is_written_when_it_is_whole():
    pieces = [b"a", b"\xf0\x9f", b"\x98", b"\x80", b"b"]
    tokens = [Token(number, 0.0, ()) for number in range(len(pieces))]
    for has_echo in (False, True):
        writer = TextWriter(pieces, (), [0, 1])
        texts = [writer.echo("a\ufffd", tokens[:2]).text] if has_echo else []
        texts += [writer.add(token).text for token in tokens[2:]] + [writer.end().text]
        assert texts == ["a"] * has_echo + ["", "😀", "b", ""]
        # Where it is never completed, it is the prompt's.
        writer = TextWriter(pieces, (), [0, 1])
        texts = [writer.echo("a\ufffd", tokens[:2]).text] if has_echo else []
        texts += [writer.add(tokens[2]).text, writer.add(tokens[4]).text]
        assert "".join(texts) == ("a\ufffdb" if has_echo else "b")
