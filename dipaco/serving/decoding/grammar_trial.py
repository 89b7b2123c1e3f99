"""Schemas are tried in a child process first, which may be ended while it compiles.

A schema of a few hundred bytes can compile without end, and no thread can be stopped. The child
does what compiling does here, with limits of processor time, time and memory. A schema that it
was done with takes no more when it is compiled again, in the process that needs it.
"""

import json
import os
import signal
import subprocess
import sys
import threading

from dipaco.serving.decoding.grammar import Grammar, Grammars, GrammarVocabulary
from dipaco.serving.errors import NoGrammar

try:
    import resource
except ImportError:  # Windows: no limits
    resource = None

SECONDS = 2.0  # processor time for one schema
PATIENCE = 10  # times as long on the wall: a timer of processor time has failed to end one
MEGABYTES = 256  # memory for one schema
NICENESS = 10  # other processes, such as the server's, go first


class GrammarTrial:
    """The child, started when it is first needed. Any thread may call it: one schema at a time."""

    def __init__(self, vocabulary: GrammarVocabulary):
        self._vocabulary, self._lock = vocabulary, threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False

    def problem(self, schema: str) -> str | None:
        """Why a JSON schema cannot be used, or None. Raises `NoGrammar` if there is no child."""
        with self._lock:
            process = self._started()
            if answer := _asked(process, (schema, SECONDS, MEGABYTES << 20)):
                return json.loads(answer)
            status = self._end(process)
        is_slow = -status in (getattr(signal, "SIGPROF", None), getattr(signal, "SIGALRM", None))
        limit = f"{SECONDS:g} s" if is_slow else f"{MEGABYTES} MB of memory"
        return f"it takes more than {limit} to compile"

    def close(self) -> None:
        """Ends the child, also while it compiles. No other is started."""
        self._is_closed = True
        if (process := self._process) is not None:
            process.kill()
        with self._lock:
            if self._process is not None:
                self._end(self._process)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "dipaco.serving.decoding.grammar_trial"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C ends the server, and that ends the child
            )
            is_ready = _asked(self._process, self._vocabulary)
            if self._is_closed or not is_ready:
                self._end(self._process)
                raise NoGrammar(problem="the process that tries schemas does not start")
        return self._process

    def _end(self, process: subprocess.Popen[bytes]) -> int:
        """Leaves the child, which ends. Returns its exit code."""
        self._process = None
        process.communicate()
        return process.returncode


def _asked(process: subprocess.Popen[bytes], question: object) -> bytes:
    """The child's answer, a line of JSON. Empty if it has ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(question).encode() + b"\n")
        process.stdin.flush()
    except OSError:
        return b""
    return process.stdout.readline()


def main() -> None:
    """The child: answers a vocabulary, then schemas with their limits, by a line each."""
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    tokenizer = Grammars(GrammarVocabulary(*json.loads(sys.stdin.readline()))).tokenizer
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        schema, *limits = json.loads(line)
        _limit(*limits)
        problem = Grammar(schema, tokenizer).problem
        _limit(0.0, None)
        print(json.dumps(problem), flush=True)


def _limit(seconds: float, num_bytes: int | None) -> None:
    """Limits what this process may use from now on. It dies beyond. 0 and None: no limit."""
    if resource is None:
        return
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE * seconds)
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    limit = most if num_bytes is None else _used_bytes() + num_bytes
    if most == resource.RLIM_INFINITY or limit < most:
        resource.setrlimit(resource.RLIMIT_AS, (limit, most))


def _used_bytes() -> int:
    """The address space of this process. No limit where the system does not say it."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 1 << 50


if __name__ == "__main__":
    main()
