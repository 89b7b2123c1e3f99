"""`dipaco serve` as a process, for tests."""

import http.client
import json
import os
import re
import subprocess
import sys

from tests.support.tiny_run import HOME

# Many more choices than rows, so it takes a while.
LONG = {"model": "toy", "prompt": "jiji", "n": 96, "max_tokens": 50, "temperature": 1.0}


class Server:
    """A server process, and the port that it reports; it imports from `path` first."""

    def __init__(self, folder, cache, *options, max_files=None, path=()):
        command = [sys.executable, "-m", "dipaco.cli.main", "serve", "--run", folder, "--port", "0"]
        prefix = []
        if max_files:  # (soft, hard) limit of open files
            limits = "ulimit -Sn {}; ulimit -Hn {}".format(*max_files)
            prefix = ["bash", "-c", f'{limits}; exec "$@"', "bash"]
        environment = os.environ | {
            "XLA_FLAGS": "",
            "PYTHONPATH": os.pathsep.join(map(str, (*path, HOME))),
            "DIPACO_CACHE": str(cache),
        }
        self.process = subprocess.Popen(
            [*prefix, *map(str, command), *options],
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.stderr = ""
        self.port = int(self.read_until(r"http://127\.0\.0\.1:(\d+)")[1])

    def read_until(self, pattern):
        """Reads what it says until a pattern is in it. Returns the match."""
        assert self.process.stderr
        while not (found := re.search(pattern, self.stderr)):
            line = self.process.stderr.readline()
            assert line, f"the server ended: {self.stderr}"
            self.stderr += line
        return found

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)

    def begin(self, body):
        """Starts a stream and reads its first line."""
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
        return float(
            re.search(rf"^(?:dipaco_|vllm:){name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)[1]
        )

    def end(self):
        """Waits for the process; returns its exit code."""
        self.stderr += self.process.communicate(timeout=60)[1]
        return self.process.returncode
