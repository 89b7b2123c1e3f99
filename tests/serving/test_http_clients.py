"""Requests of other programs, as they sent them: LangChain's and LiteLLM's clients for OpenAI, and
Open WebUI. `recorded_requests.json` has each with the program and its version.
"""

import json
from pathlib import Path

import pytest

from tests.support.serving_rig import error_of, events_of

RECORDED = json.loads(Path(__file__).with_name("recorded_requests.json").read_text())
TEMPLATE = "{% for m in messages %}{{ m.content if m.content is string else '' }} {% endfor %}"


@pytest.fixture(scope="module")
def any_client(chatting):
    with chatting(TEMPLATE) as client:
        yield client


def name_of(recorded):
    fields = [key for key in recorded["body"] if key not in ("model", "messages")]
    return f"{recorded['client'].split()[0]} {recorded['path']} {','.join(fields)}"


@pytest.mark.parametrize("recorded", RECORDED, ids=name_of)
def test_what_clients_send_is_answered_in_the_shape_that_they_read(any_client, recorded):
    where, body = recorded["path"], recorded["body"]
    answer = any_client.post(where, json=body)
    if body.get("tools"):
        message = error_of(answer, 400, "tools")
        assert "`response_format`" in message
        return
    assert answer.status_code == 200, answer.text
    if not body.get("stream"):
        found = answer.json()
        given = body.get("prompt", "")
        prompts = len(given) if isinstance(given, list) else 1
        assert len(found["choices"]) == prompts * (body.get("n") or 1)
        assert found["usage"]["total_tokens"] > 0
        for choice in found["choices"]:
            text = choice["text"] if where == "/v1/completions" else choice["message"]["content"]
            if (body.get("response_format") or {}).get("type") == "json_schema":
                assert choice["finish_reason"] == "stop"
                assert set(json.loads(text)) == {"sure", "digits"}
        return
    found = events_of(answer)
    reasons = [c["finish_reason"] for event in found for c in event["choices"]]
    assert reasons[-1] in ("stop", "length")
    if body.get("stream_options"):
        assert found[-1]["usage"]["completion_tokens"] > 0
