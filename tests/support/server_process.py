"""`dipaco serve` as a process, and what tests ask of it."""

import http.client
import json
import os
import re
import subprocess
import sys
import time

from tests.support.tiny_run import HOME

# Far more rows than are decoded at once, so that it takes a while.
LONG = {"model": "toy", "prompt": "jiji", "n": 96, "max_tokens": 50, "temperature": 1.0}


class Server:
    """A process, and the port that it says it listens on."""

    def __init__(self, folder, cache, *options):
        command = [sys.executable, "-m", "dipaco.cli.main", "serve", "--run", folder, "--port", "0"]
        environment = os.environ | {
            "XLA_FLAGS": "",
            "PYTHONPATH": str(HOME),
            "DIPACO_CACHE": str(cache),
        }
        self.process = subprocess.Popen(
            [*map(str, command), *options], stderr=subprocess.PIPE, text=True, env=environment
        )
        assert self.process.stderr
        self.said = ""
        while not (found := re.search(r"http://127\.0\.0\.1:(\d+)", self.said)):
            line = self.process.stderr.readline()
            assert line, f"it ended: {self.said}"
            self.said += line
        self.port = int(found[1])

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)

    def begin(self, body):
        """A stream, after its first line."""
        connection = self.connect()
        connection.request(
            "POST",
            "/v1/completions",
            json.dumps(body | {"stream": True}),
            {"Content-Type": "application/json"},
        )
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        return connection, answer, answer.readline()

    def metric(self, name):
        connection = self.connect()
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        return float(re.search(rf"^dipaco_{name} (\S+)$", text, re.MULTILINE)[1])

    def end(self):
        """Waits; the exit code."""
        self.said += self.process.communicate(timeout=60)[1]
        return self.process.returncode


def until(is_so):
    for _ in range(600):
        if is_so():
            return
        time.sleep(0.05)
    raise AssertionError("it never came to that")
