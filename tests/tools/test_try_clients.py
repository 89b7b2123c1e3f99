"""`tools/try_clients.py` with a server that is made up: what goes wrong is said, and fails."""

import http.server
import json
import sys

import pytest
import try_clients
from clients import checks, open_webui_checks
from clients.checks import Check, Server, need, outcome_of, refused
from support.http_thread import HttpThread

HERE = Server("http://127.0.0.1:1", "toy", "none")


def server(answer_chat):
    """Has one model, and answers a chat as it is told: a status and a body."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.reply(200, json.dumps({"data": [{"id": "toy"}]}))

        def do_POST(self):
            self.reply(
                *answer_chat(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            )

        def reply(self, status, text):
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format, *values):
            pass

    return HttpThread(Handler)


def right(body):
    end = {"choices": [{"finish_reason": "stop"}], "usage": {"completion_tokens": 3}}
    if body.get("stream"):
        return 200, f"data: {json.dumps(end)}\n\ndata: [DONE]\n\n"
    return 200, json.dumps({"choices": [{"message": {"content": "a title"}}]})


def broken_off(body):
    status, text = right(body)
    return status, text.replace("data: [DONE]\n\n", "")


def tried(monkeypatch, capsys, *options):
    """The exit code and the lines that are printed."""
    monkeypatch.setattr(sys, "argv", ["try_clients.py", *options])
    code = 0
    try:
        try_clients.main()
    except SystemExit as end:
        code = end.code
    return code, capsys.readouterr().out.splitlines()


def test_a_server_that_answers_as_recorded_clients_read_it_passes(monkeypatch, capsys):
    with server(right) as at:
        code, lines = tried(monkeypatch, capsys, "--url", at.url, "--only", "open-webui")
    assert code == 0
    assert len(lines) == len(open_webui_checks.checks()) + 1
    assert all(line.endswith("  ok") for line in lines[:-1])


@pytest.mark.parametrize(
    ("answer", "said"),
    [(broken_off, "WrongAnswer"), (lambda body: (400, "no `seed` here"), "400: no `seed` here")],
    ids=["broken off", "refused"],
)
def test_what_goes_wrong_is_said_and_fails(monkeypatch, capsys, answer, said):
    with server(answer) as at:
        code, lines = tried(monkeypatch, capsys, "--url", at.url, "--only", "open-webui")
    assert code == 1
    assert any("failed" in line and said in line for line in lines)


def test_a_client_that_is_not_installed_is_said_and_passes_for_nothing(monkeypatch, capsys):
    monkeypatch.setitem(try_clients.PACKAGES, "litellm", ("no-such-package", "clients.none"))
    with server(right) as at:
        options = ("--url", at.url, "--only", "litellm", "lm-eval")
        code, lines = tried(monkeypatch, capsys, *options)
    assert code == 1, "nothing was tried"
    assert ["not tried" in line for line in lines] == [True, True, True]


def test_a_client_whose_checks_do_not_begin_has_failed(monkeypatch, capsys):
    monkeypatch.setitem(try_clients.PACKAGES, "openai", ("pytest", "clients.none"))
    with server(right) as at:
        code, lines = tried(monkeypatch, capsys, "--url", at.url, "--only", "openai")
    assert code == 1
    assert "failed" in lines[0]
    assert "clients.none" in lines[0]


def test_a_client_writes_a_line_for_each_check(monkeypatch, capsys):
    def wrong(server):
        need(server.model == "another", server.model)

    made = [Check("it is", lambda _: None), Check("wrong", wrong)]
    monkeypatch.setattr(sys, "argv", ["checks", HERE.url, HERE.model])
    monkeypatch.setenv(checks.KEY_VARIABLE, HERE.key)
    checks.run_checks("pytest", made)
    first, *found = map(json.loads, capsys.readouterr().out.splitlines())
    assert first == {"version": pytest.__version__}
    assert [each["state"] for each in found] == ["ok", "failed"]
    assert "toy" in found[1]["why"]


def test_a_call_that_should_be_refused_must_be_so_with_a_word():
    no_refusals = (lambda: "an answer", lambda: int("a sentence"), lambda: {}["another error"])
    for call in (lambda: int("temperature"), *no_refusals):
        check = Check("refused", lambda _, call=call: refused(call, ValueError, "temperature"))
        assert (outcome_of(check, HERE).state == "failed") == (call in no_refusals)
