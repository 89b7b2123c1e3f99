"""A file of requests: each line is answered as at HTTP, a bad one with an error, none twice."""

import functools
import json

import pytest

pytest.importorskip("starlette", reason="HTTP needs the `serve` extra")

from dipaco.cli.main import main
from dipaco.serving import service as services
from dipaco.serving.http import batch_file
from dipaco.serving.http.app import make_app

COMPLETION = {"model": "toy", "prompt": "jiji", "max_tokens": 6, "temperature": 0}
CHAT = {
    "model": "toy",
    "messages": [{"role": "user", "content": "jiji"}],
    "max_tokens": 6,
    "seed": 1,
}
RESPONSE = {"model": "toy", "input": "jiji", "max_output_tokens": 6, "temperature": 0}
ASKED = {
    "/v1/completions": COMPLETION,
    "/v1/chat/completions": CHAT,
    "/v1/responses": RESPONSE,
}


def line_of(name, url, body, **more):
    return json.dumps({"custom_id": name, "method": "POST", "url": url, "body": body} | more)


GOOD = [line_of(url, url, body) for url, body in ASKED.items()]
BAD = {
    "no JSON": ("{", None, None),
    "no such URL": (line_of("a", "/v1/embeddings", {}), "a", "url"),
    "not POST": (line_of("b", "/v1/completions", COMPLETION, method="GET"), "b", "method"),
    "no name": (json.dumps({"method": "POST"}), None, "custom_id"),
    "a stream": (
        line_of("c", "/v1/completions", COMPLETION | {"stream": True}),
        "c",
        "body.stream",
    ),
    "a list": (line_of("d", "/v1/completions", []), "d", None),
    "an unknown field": (line_of("e", "/v1/completions", COMPLETION, tag=1), "e", "tag"),
}


def rows_of(file):
    return [json.loads(row) for row in file.read_text().splitlines()]


def kept(answer):
    """An answer without what differs each time."""
    return {k: v for k, v in answer.items() if k not in ("id", "created", "created_at", "output")}


def test_each_line_is_answered_as_at_http_and_a_bad_one_with_an_error(service, client, tmp_path):
    refused = line_of("refused", "/v1/completions", COMPLETION | {"top_p": 2})
    lines = [*GOOD, refused, *(line for line, *_ in BAD.values())]
    given, out = tmp_path / "given.jsonl", tmp_path / "out.jsonl"
    given.write_text("\n\n".join(lines) + "\r\n")
    assert batch_file.answer_file(make_app(service), "0", given, out, 3) == (11, 8)
    rows = rows_of(out)
    assert len({row["id"] for row in rows}) == len(rows)
    for row, (url, body) in zip(rows, ASKED.items(), strict=False):
        found = row["response"]
        assert (row["custom_id"], row["error"], found["status_code"]) == (url, None, 200)
        assert found["request_id"]
        assert kept(found["body"]) == kept(client.post(url, json=body).json())
    found = rows[3]["response"]
    assert (found["status_code"], found["body"]["error"]["param"]) == (400, "top_p")
    for row, (_, name, param) in zip(rows[4:], BAD.values(), strict=True):
        assert (row["custom_id"], row["response"], row["error"]["param"]) == (name, None, param)
        assert row["error"]["message"].endswith(".")
    assert [each.name for each in tmp_path.iterdir()].count("out.jsonl.partial") == 0


def test_an_interrupted_batch_answers_what_is_left(service, tmp_path, monkeypatch):
    given, out = tmp_path / "given.jsonl", tmp_path / "out.jsonl"
    given.write_text("\n".join(GOOD))
    asked, ask = [], batch_file._asked

    async def interrupted(app, line):
        if len(asked) == 2:
            raise KeyboardInterrupt
        asked.append(line.custom_id)
        return await ask(app, line)

    monkeypatch.setattr(batch_file, "_asked", interrupted)
    with pytest.raises(KeyboardInterrupt):
        batch_file.answer_file(make_app(service), "0", given, out, 1)
    assert not out.exists()
    partial = tmp_path / "out.jsonl.partial"
    first, second = rows_of(partial)
    partial.write_text(json.dumps(first) + "\n" + json.dumps(second)[:50])
    asked.clear()
    monkeypatch.setattr(
        batch_file, "_asked", lambda app, line: asked.append(line) or ask(app, line)
    )
    assert batch_file.answer_file(make_app(service), "0", given, out, 1) == (3, 0)
    assert [line.url for line in asked] == list(ASKED)[1:]
    assert rows_of(out)[0] == first
    assert [row["custom_id"] for row in rows_of(out)] == list(ASKED)


def test_a_full_server_is_asked_again(service, tmp_path):
    """Each request has as many choices as the server takes at once."""
    most = service.loop.capacity
    given, out = tmp_path / "given.jsonl", tmp_path / "out.jsonl"
    body = COMPLETION | {"n": most, "max_tokens": 1}
    given.write_text("\n".join(line_of(str(n), "/v1/completions", body) for n in range(3)))
    assert batch_file.answer_file(make_app(service), "0", given, out, 3) == (3, 0)
    assert all(len(row["response"]["body"]["choices"]) == most for row in rows_of(out))


def test_the_command_answers_a_file_once_and_names_options_that_lines_have(
    tiny, limits, command_cache, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("DIPACO_CACHE", str(command_cache))
    few = functools.partial(services.ServiceSettings, limits=limits)
    monkeypatch.setattr(services, "ServiceSettings", few)
    given, out = tmp_path / "given.jsonl", tmp_path / "out.jsonl"
    given.write_text("\n".join(GOOD))
    command = ["generate", "--run", str(tiny.folder), "--batch", str(given), "--out", str(out)]
    assert main([*command, "--top-k", "3"]) != 0
    assert "`--top-k`" in capsys.readouterr().err
    assert main(command) == 0
    said = capsys.readouterr().err
    assert "3 of 3 requests (100%)" in said
    assert f"{out}: 3 rows, 0 of them errors" in said
    assert main(command) != 0
    assert "`--out`" in capsys.readouterr().err
