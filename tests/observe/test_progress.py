import io
import re
import sys
import types

import pytest

from dipaco.observe.progress import CompileProgress, Progress

PROGRAMS = (
    "compiling prefill of 8 x 64 tokens",
    "compiling scoring a prompt",
    "compiling decoding 1 row of 64 tokens",
)


class Clock:
    """A clock that the test moves."""

    seconds = 0.0

    def __call__(self):
        return self.seconds


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_plain_line_shows_steps_loss_speed_bytes_and_time_left():
    clock, stream = Clock(), io.StringIO()
    with Progress("phase 2 of 4", 80, stream=stream, clock=clock) as progress:
        clock.seconds = 5
        progress.advance(30, tokens=123_000)
        clock.seconds = 20
        progress.advance(30, tokens=123_000, bytes_sent=3_400_000, loss=4.8123)
        said = stream.getvalue()
        progress.advance(20)
    assert said == (
        "phase 2 of 4: 60 of 80 steps (75%), loss 4.812, 12,300 tokens/s, 3.4 MB sent, 10 s left\n"
    )
    assert stream.getvalue().splitlines()[1].startswith("phase 2 of 4: 80 of 80 steps (100%)")
    assert "left" not in stream.getvalue().splitlines()[1]


def test_a_notebook_has_one_output_that_changes(monkeypatch):
    shown = []

    class Handle:
        def update(self, content, raw):
            shown.append(content)

    def display(content, raw, display_id):
        Handle().update(content, raw)
        return Handle()

    module = types.SimpleNamespace(display=display)
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(display=module))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    stream = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()
    with Progress("base", 100, stream=stream) as progress:
        progress.begin("train <b> path 0")
        progress.advance(40, loss=4.8)
        for number in range(9):
            progress.say(f"event {number}")
    assert stream.getvalue() == ""
    assert '<progress value="40" max="100">' in shown[-1]["text/html"]
    assert "train &lt;b&gt; path 0 · loss 4.800" in shown[-1]["text/html"]
    lines = [f"event {number}" for number in range(5, 9)]
    assert shown[-1]["text/plain"].splitlines()[1:] == lines


def test_plain_lines_come_every_ten_seconds_and_once_at_the_end():
    clock, stream = Clock(), io.StringIO()
    with Progress("base", 100, stream=stream, clock=clock) as progress:
        for second in range(1, 26):
            clock.seconds = second
            progress.advance(4)
    steps = [line.split(":")[1].split()[0] for line in stream.getvalue().splitlines()]
    assert steps == ["40", "80", "100"]


def test_steps_before_an_interruption_do_not_count_as_speed():
    clock, stream = Clock(), io.StringIO()
    with Progress("base", 100, done_steps=90, stream=stream, clock=clock) as progress:
        clock.seconds = 50
        progress.advance(5)
        clock.seconds = 60
        progress.advance(2)
    assert stream.getvalue().splitlines() == [
        "base: 95 of 100 steps (95%)",  # one measurement, which holds compilation, is no speed
        "base: 97 of 100 steps (97%), 15 s left",
    ]


def test_steps_that_others_did_meanwhile_count_but_not_as_speed():
    clock, stream = Clock(), io.StringIO()
    with Progress("base", 100, stream=stream, clock=clock) as progress:
        clock.seconds = 5
        progress.advance(5)
        progress.begin("late", done_steps=80)
        clock.seconds = 10
        progress.advance(5)
    assert stream.getvalue() == "late: 85 of 100 steps (85%), 15 s left\n"


def test_a_stage_without_a_unit_shows_only_its_share_and_may_be_renamed():
    clock, stream = Clock(), io.StringIO()
    with Progress("sweep, 0 of 2 runs", 1000, unit="", stream=stream, clock=clock) as progress:
        progress.advance(100)
        clock.seconds = 20
        progress.rename("sweep, 1 of 2 runs")
        progress.advance(400)
    assert stream.getvalue() == "sweep, 1 of 2 runs: 50%, 25 s left\n"


def test_on_a_terminal_there_is_a_bar_and_lines_stand_above_it():
    stream = Terminal()
    with Progress("base", 10, stream=stream, clock=Clock()) as progress:
        progress.advance(5, loss=3.0)
        progress.say("path 3: 12 documents [not markup]")
    assert "path 3: 12 documents [not markup]" in stream.getvalue()
    assert "base" in stream.getvalue()
    assert "loss 3.000" in stream.getvalue()


def test_at_80_columns_the_bar_and_the_counts_stay_and_less_is_said(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    clock, stream = Clock(), Terminal()
    title = "train modular path 1 phase 3"
    with Progress(title, 1450, done_steps=20, stream=stream, clock=clock) as progress:
        progress.advance(200, tokens=4000, loss=4.48)
        clock.seconds = 100
        progress.advance(60, tokens=4000, bytes_sent=3_400_000)
    last = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue()).split(title)[-1]
    assert re.search("[━╺╸]{9,} +280/1450 +loss 4.480 · 32 min 30 s left", last), last
    assert "…" not in last


def test_the_bar_begins_with_what_was_done_before():
    stream = Terminal()
    with Progress("sweep", 2066, done_steps=2066, stream=stream, clock=Clock()):
        pass
    assert "2066/2066" in stream.getvalue()


def test_compiling_has_plain_lines_with_the_time_left_in_a_log():
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


def test_compiling_is_a_bar_on_a_terminal():
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
