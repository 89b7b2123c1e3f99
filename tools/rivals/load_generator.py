"""aiperf, a load generator of others: it asks a server, and its report is read.

Every server is asked by the same program in the same way, so what it costs is the same for all:
streamed completions, temperature 0, a fixed number of new tokens, so many requests at once.
"""

import json
import math
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rivals.server_process import end_group, last_lines

REPORT = "profile_export_aiperf.json"


class LoadFailed(Exception):
    """A server did not answer a load as it was asked to."""


class Request(NamedTuple):
    """One completion."""

    prompt: str
    fields: Mapping[str, Any] = {}  # fields of its body beside the common ones


class Load(NamedTuple):
    """The result of one load."""

    tokens_per_second: float
    first_token_ms: Mapping[int, float]  # percentile -> milliseconds, 50 and 95


def dataset(requests: Sequence[Request], new_tokens: int) -> str:
    """The requests as aiperf reads them, a line each."""
    lines = []
    for request in requests:
        line: dict[str, Any] = {"text": request.prompt, "output_length": new_tokens}
        if request.fields:
            line["extra"] = dict(request.fields)
        lines.append(json.dumps(line, ensure_ascii=False) + "\n")
    return "".join(lines)


def command(
    program: Path,
    url: str,
    model: str,
    tokenizer: Path,
    requests: Path,
    num_requests: int,
    concurrency: int,
    out: Path,
) -> list[str]:
    """The command line of aiperf. Before the load it sends one uncounted request per client.

    Every request has a new connection, since llama-server closes one after 100 requests, and a
    request that is just being written to it fails.
    """
    return [
        *(str(program), "profile", "--model", model, "--url", url, "--tokenizer", str(tokenizer)),
        *("--endpoint-type", "completions", "--streaming", "--use-legacy-max-tokens"),
        *("--input-file", str(requests), "--custom-dataset-type", "single_turn"),
        *("--dataset-sampling-strategy", "sequential", "--extra-inputs", "temperature:0"),
        *("--concurrency", str(concurrency), "--request-count", str(num_requests)),
        *("--warmup-request-count", str(concurrency), "--use-server-token-count"),
        *(
            "--connection-reuse-strategy",
            "never",
            "--workers-max",
            "1",
            "--record-processors",
            "1",
            "--export-level",
            "summary",
        ),
        *("--ui", "none", "--no-gpu-telemetry", "--no-server-metrics"),
        *("--output-artifact-dir", str(out)),
    ]


def read_report(text: str, num_requests: int, new_tokens: int) -> Load:
    """A report of aiperf.

    Raises:
      LoadFailed: requests failed, or some had another number of tokens than was asked for.
    """
    try:
        report = json.loads(text)
        errors = [f"{each['count']} times {each['error_details']}" for each in _errors(report)]
        answered = int(report["request_count"]["avg"]) if "request_count" in report else 0
        if errors or answered < num_requests:
            told = "; ".join(errors) or "the others got no answer"
            raise LoadFailed(f"{answered} of {num_requests} requests were answered: {told}")
        tokens = int(report["total_output_tokens"]["avg"])
        first = report["time_to_first_token"]
        load = Load(
            float(report["output_token_throughput"]["avg"]),
            {percent: float(first[f"p{percent}"]) for percent in (50, 95)},
        )
    except (ValueError, KeyError, TypeError) as error:
        raise LoadFailed(f"aiperf's {REPORT} is not as expected: {error!r}") from error
    if tokens != answered * new_tokens:
        raise LoadFailed(
            f"{answered} requests for {new_tokens} tokens each were answered with {tokens} in all, "
            f"not {answered * new_tokens}: the server ends texts early, or does not count them"
        )
    if not math.isfinite(load.tokens_per_second) or load.tokens_per_second <= 0:
        raise LoadFailed(f"aiperf reports {load.tokens_per_second} tokens a second")
    return load


def _errors(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    return list(report.get("error_summary") or [])


class LoadGenerator:
    """An installed aiperf.

    Args:
      program: its executable.
      tokenizer: a checkpoint's folder, by which prompts are counted.
      folder: a new one, for requests, reports and logs.
      new_tokens: of each request.
      limit_seconds: of one load.
    """

    def __init__(
        self, program: Path, tokenizer: Path, folder: Path, new_tokens: int, limit_seconds: float
    ):
        self._program, self._tokenizer, self._folder = program, tokenizer, folder
        self.new_tokens, self._limit_seconds = new_tokens, limit_seconds
        self._number = 0
        folder.mkdir(parents=True)

    def ask(self, url: str, model: str, requests: Sequence[Request], concurrency: int) -> Load:
        """Asks a server for all of these, so many at once, after requests that warm up.

        Raises:
          LoadFailed: it takes too long, or does not answer as it should.
        """
        self._number += 1
        out = self._folder / f"{self._number:03}"
        out.mkdir()
        (out / "requests.jsonl").write_text(dataset(requests, self.new_tokens), encoding="utf-8")
        num_requests = len(requests) - concurrency
        assert num_requests > 0
        words = command(
            self._program,
            url,
            model,
            self._tokenizer,
            out / "requests.jsonl",
            num_requests,
            concurrency,
            out,
        )
        with (out / "aiperf.log").open("w") as log:
            process = subprocess.Popen(
                words, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )
            try:
                code = process.wait(timeout=self._limit_seconds)
            except subprocess.TimeoutExpired:
                raise LoadFailed(
                    f"{num_requests} requests, {concurrency} at once, took more than "
                    f"{self._limit_seconds:.0f} s (--load-seconds)"
                ) from None
            finally:
                end_group(process)
        if not (out / REPORT).is_file():
            last = last_lines(out / "aiperf.log")
            raise LoadFailed(f"aiperf ended with exit code {code} and without a report:\n{last}")
        return read_report((out / REPORT).read_text(), num_requests, self.new_tokens)
