"""Progress of compiling: which program it is at, how many are done, how long the rest takes."""

import io

import pytest

from dipaco.observe.compiling import CompileProgress
from tests.observe.test_progress import Clock, Terminal

PROGRAMS = (
    "compiling prefill of 8 x 64 tokens",
    "compiling scoring a prompt",
    "compiling decoding 1 row of 64 tokens",
)


def test_a_log_has_plain_lines_with_what_is_left():
    clock, stream = Clock(), io.StringIO()
    with CompileProgress(stream, clock) as progress:
        for done, name in enumerate(PROGRAMS):
            progress.show(name, done, 3)
            clock.seconds += 12
    assert stream.getvalue().splitlines() == [
        "compiling prefill of 8 x 64 tokens: 1 of 3 programs (33%), 24 s left",
        "compiling scoring a prompt: 2 of 3 programs (67%), 12 s left",
        "compiling decoding 1 row of 64 tokens: 3 of 3 programs (100%)",
    ]


def test_programs_that_were_compiled_before_are_one_line():
    stream = io.StringIO()
    with CompileProgress(stream, Clock()) as progress:
        for done, name in enumerate(PROGRAMS):
            progress.show(name, done, 3)
    assert stream.getvalue() == "compiling decoding 1 row of 64 tokens: 3 of 3 programs (100%)\n"


def test_on_a_terminal_it_is_a_bar():
    stream = Terminal()
    with CompileProgress(stream, Clock()) as progress:
        progress.show(PROGRAMS[0], 0, 3)
        progress.show(PROGRAMS[1], 1, 3)
    assert "\x1b" in stream.getvalue()
    assert "3/3" in stream.getvalue()


def test_an_error_is_not_counted_as_the_end():
    clock, stream = Clock(), io.StringIO()

    def fail():
        with CompileProgress(stream, clock) as progress:
            progress.show(PROGRAMS[0], 0, 3)
            progress.show(PROGRAMS[1], 1, 3)
            raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        fail()
    assert "(100%)" not in stream.getvalue()


def test_nothing_to_compile_says_nothing():
    stream = io.StringIO()
    with CompileProgress(stream):
        pass
    assert stream.getvalue() == ""
