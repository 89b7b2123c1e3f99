"""`dipaco` command lines in the process of the test: no start, no fork, no second of JAX.

Fixture `here`: `here("status", "--run", folder)` -> `Ended`. For what a command says and writes; a
kill, the code that a shell sees, and what depends on the number of devices need `dipaco`'s process.
"""

import contextlib
import io
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest

from dipaco.cli.main import main
from dipaco.runs import allocator
from tests.support.tiny_run import Ended

OF_JAX = (
    *("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs"),
    *("jax_platforms", "jax_num_cpu_devices"),
)


class _Stream(io.TextIOWrapper):
    """What is written to it, bytes too, can be read meanwhile and afterwards."""

    def __init__(self):
        self.bytes = io.BytesIO()
        super().__init__(self.bytes, encoding="utf-8", write_through=True)

    def said(self) -> str:
        return self.bytes.getvalue().decode()


@contextlib.contextmanager
def left_as_it_was(cache: Path) -> Iterator[None]:
    """What a command changes in its process is put back: a process ends with its command."""
    import jax

    settings = {name: getattr(jax.config, name) for name in OF_JAX}
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    folder = Path.cwd()
    with (
        mock.patch.dict(os.environ, DIPACO_CACHE=str(cache)),
        mock.patch.object(allocator, "keep_freed_memory"),
    ):
        try:
            yield
        finally:
            os.chdir(folder)
            for number, handler in handlers.items():
                signal.signal(number, handler)
            for name, value in settings.items():
                jax.config.update(name, value)


@pytest.fixture(scope="session")
def here(command_cache) -> Callable[..., Ended]:
    """Runs one in this process, with the programs that all commands have compiled."""

    def run(*arguments: object) -> Ended:
        out, err = _Stream(), _Stream()
        with (
            left_as_it_was(command_cache),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            try:
                code = main([str(each) for each in arguments])
            except SystemExit as ended:  # of the parser
                code = ended.code
        return Ended(code, out.said(), err.said(), None)

    return run
