"""What is printed is as wide as the terminal, and broken between words."""

from hypothesis import given
from hypothesis import strategies as st

from dipaco.observe.terminal import folded, say

TEXTS = st.text(alphabet="ab 0-\n", max_size=300)


def test_what_is_broken_off_stands_further_in():
    line = "  module early/0000  fan-in 4, phases 1 to 5"
    assert folded(line, 30).split("\n") == ["  module early/0000  fan-in 4,", "      phases 1 to 5"]
    assert folded(line, 80) == line
    assert folded("a\n\n  b", 80) == "a\n\n  b"


@given(TEXTS)
def test_no_line_is_wider_and_no_word_is_lost(text):
    shown = folded(text, 20)
    assert all(len(line) <= 20 for line in shown.split("\n"))
    assert shown.replace("\n", "").replace(" ", "") == text.replace("\n", "").replace(" ", "")


def test_a_terminal_is_not_steered_by_what_is_printed_and_a_pipe_gets_it_as_it_is(
    monkeypatch, capsys
):
    steering = "a\x1b[2Jb\r\x9bc\u202ed\n\te"
    say(steering)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    say(steering)
    as_it_is, seen = capsys.readouterr().out.split("e\n", 1)
    assert as_it_is + "e" == steering
    assert seen == "a\ufffd[2Jb\ufffd\ufffdc\ufffdd\n        e\n"
