"""Open WebUI's calls as recorded (it is too large to install for this), and what it reads of the
answers.
"""

import functools
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from clients.checks import Check, Server, WrongAnswer, need

RECORDED = Path(__file__).parents[2] / "tests" / "serving" / "recorded_requests.json"
CLIENT = "Open WebUI"


def checks() -> tuple[Check, ...]:
    """One for each of the calls, and the list of models, from which it fills its menu."""
    calls = [each for each in json.loads(RECORDED.read_text()) if each["client"].startswith(CLIENT)]
    return (
        Check("the list of models", _models),
        Check("a title, asked for in more than a small context holds", _long_task),
        *(Check(_name(call["body"]), functools.partial(_replay, call)) for call in calls),
    )


def _name(body: dict[str, Any]) -> str:
    kind = "a streamed chat" if body["stream"] else "a title, tags or questions"
    return f"{kind}: {', '.join(key for key in body if key not in ('model', 'stream'))}"


def _models(server: Server) -> None:
    found = json.loads(_ask(server, "/v1/models", None))
    need(server.model in [model["id"] for model in found["data"]], found)


def _replay(call: dict[str, Any], server: Server) -> None:
    body = call["body"] | {"model": server.model}
    text = _ask(server, call["path"], body)
    if not body["stream"]:
        message = json.loads(text)["choices"][0]["message"]
        need(isinstance(message["content"], str), message)
        return
    *events, end = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    need(end == "[DONE]", end)
    found = [json.loads(event) for event in events]
    reasons = [choice["finish_reason"] for event in found for choice in event["choices"]]
    need(reasons[-1] in ("stop", "length"), reasons)
    if body.get("stream_options"):
        need(found[-1]["usage"]["completion_tokens"] > 0, found[-1])


def _long_task(server: Server) -> None:
    """Without a title, Open WebUI calls a chat by its first words."""
    asked = [{"role": "user", "content": f"### Task:\nWrite a title of these.\n{'a word ' * 200}"}]
    try:
        _ask(server, "/v1/chat/completions", {"model": server.model, "messages": asked})
    except WrongAnswer as refusal:
        need("400" in str(refusal) and "context_length_exceeded" in str(refusal), refusal)


def _ask(server: Server, where: str, body: dict[str, Any] | None) -> str:
    """Raises `WrongAnswer` with what the server says, if it refuses."""
    request = urllib.request.Request(
        server.url + where,
        None if body is None else json.dumps(body).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {server.key}"},
    )
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        raise WrongAnswer(f"{error.code}: {error.read().decode()}") from error
