"""Other people's clients, unmodified, against a server of a run: does each get what it asks for?

  python -m venv ~/clients && ~/clients/bin/pip install openai langchain-openai litellm
  python tools/try_clients.py --run runs/quickstart --clients-env ~/clients
  python tools/try_clients.py --url http://127.0.0.1:8000 --only openai open-webui

With `--run` it starts `dipaco serve`, without settings. With `--url` it asks a server that runs.
Then come `openai`, `langchain-openai` and LiteLLM
with the Python of `--clients-env` (this one by default), if they are installed, then Open WebUI's
calls as recorded. With `--run` comes lm-eval, if this Python has it. Its figures must equal
`transformers`' (see `check_lm_eval.py`).

Prints a line for each check: the client, its version, what it was asked for, and `ok`, or what went
wrong. Ends with exit code 1 if something did, or if nothing was tried.
"""

import argparse
import contextlib
import importlib.metadata
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Generator, Iterator
from pathlib import Path

from clients import open_webui_checks
from clients.checks import KEY_VARIABLE, Outcome, Server, outcome_of
from support.command_line import parser_of
from support.serve_process import serving

# client: the package, and the file of its checks
PACKAGES = {
    "openai": ("openai", "clients.openai_checks"),
    "langchain": ("langchain-openai", "clients.langchain_checks"),
    "litellm": ("litellm", "clients.litellm_checks"),
}
OTHERS = ("open-webui", "lm-eval")
LIMIT_SECONDS = 900  # for all checks of a client
Line = tuple[str, str, Outcome]  # client, version


def of_package(client: str, python: Path, server: Server) -> Iterator[Line]:
    """Runs the checks of a client that is a package, in a separate process."""
    package, module = PACKAGES[client]
    looking = f"import importlib.metadata as m; m.version({package!r})"
    if subprocess.run([python, "-c", looking], capture_output=True).returncode:
        yield package, "-", Outcome("all checks", "not tried", f"{python} does not have it")
        return
    command = [python, "-m", module, server.url, server.model]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent), KEY_VARIABLE: server.key}
    try:
        ended = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS
        )
        written, problem = ended.stdout, ended.stderr.strip().rpartition("\n")[2]
    except subprocess.TimeoutExpired as error:
        written = (error.stdout or b"").decode()
        ended, problem = None, f"not done after {LIMIT_SECONDS} s"
    version = "-"
    for line in written.splitlines():
        if not line.startswith("{"):
            continue
        found = json.loads(line)
        if "version" in found:
            version = found["version"]
        else:
            yield package, version, Outcome(**found)
    if ended is None or ended.returncode:
        yield package, version, Outcome("all checks", "failed", problem)


def of_open_webui(server: Server) -> Iterator[Line]:
    """Asks Open WebUI's recorded questions."""
    for check in open_webui_checks.checks():
        yield "Open WebUI", "recorded", outcome_of(check, server)


def of_lm_eval(run: Path | None, num_documents: int, server: Server) -> Iterator[Line]:
    """Compares lm-eval's figures with `transformers`."""
    what = "multiple choice, rolling log-likelihood, generation"
    if run is None:
        yield "lm-eval", "-", Outcome(what, "not tried", "needs `--run`, to compute them again")
        return
    try:
        version = importlib.metadata.version("lm-eval")
    except importlib.metadata.PackageNotFoundError:
        yield "lm-eval", "-", Outcome(what, "not tried", "needs the extra `parity`")
        return
    import check_lm_eval

    try:
        result = check_lm_eval.compare_run(run, num_documents, server.url)
    except SystemExit as error:
        yield "lm-eval", version, Outcome(what, "failed", str(error))
        return
    described = check_lm_eval.described(result)
    if check_lm_eval.is_same(result):
        yield "lm-eval", version, Outcome(f"{what}: {described}", "ok")
    else:
        yield "lm-eval", version, Outcome(what, "failed", described)


@contextlib.contextmanager
def served(options: argparse.Namespace) -> Generator[str]:
    """The URL of the server that is asked."""
    if options.url:
        yield options.url.rstrip("/")
        return
    with serving(options.run) as (_, host, port):
        yield f"http://{host}:{port}"


def first_model(url: str, key: str) -> str:
    """The name of the run's own model."""
    request = urllib.request.Request(url + "/v1/models", headers={"Authorization": f"Bearer {key}"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["data"][0]["id"]


def all_lines(options: argparse.Namespace, server: Server) -> Iterator[Line]:
    """Every check, in turn."""
    python = options.clients_env / "bin" / "python" if options.clients_env else Path(sys.executable)
    for client in options.only:
        if client in PACKAGES:
            yield from of_package(client, python, server)
        elif client == "open-webui":
            yield from of_open_webui(server)
        else:
            yield from of_lm_eval(options.run, options.documents, server)


def main() -> None:
    parser = parser_of(__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--run", type=Path, help="a finished run, which is served")
    what.add_argument("--url", help="of a server that runs, as http://127.0.0.1:8000")
    parser.add_argument("--clients-env", type=Path, help="a virtual environment with the clients")
    parser.add_argument("--api-key-file", type=Path, help="with --url, where a key is asked for")
    clients = (*PACKAGES, *OTHERS)
    parser.add_argument("--only", nargs="+", choices=clients, default=clients)
    parser.add_argument("--documents", type=int, default=10, help="that lm-eval asks about (10)")
    options = parser.parse_args()
    if options.clients_env and not (options.clients_env / "bin" / "python").is_file():
        parser.error(f"{options.clients_env} has no bin/python: it is no virtual environment")
    states = []
    try:
        key = options.api_key_file.read_text().split()[0] if options.api_key_file else "none"
    except (OSError, IndexError) as error:
        parser.error(f"no key in {options.api_key_file}: {error}")
    with served(options) as url:
        try:
            model = first_model(url, key)
        except OSError as error:  # urllib's errors are among them.
            parser.error(f"{url} does not list its models: {error}")
        server = Server(url, model, key)
        for client, version, outcome in all_lines(options, server):
            why = f": {outcome.why}" if outcome.why else ""
            print(f"{client} {version}  {outcome.what}  {outcome.state}{why}", flush=True)
            states.append(outcome.state)
    tried = [state for state in states if state != "not tried"]
    print(f"{tried.count('ok')} of {len(tried)} ok; not tried: {len(states) - len(tried)}")
    if not tried or "failed" in tried:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
