"""Valid and invalid bodies generated from the published document: an answer or a 4xx, never a 5xx.

The long form, against a running server:
schemathesis run http://127.0.0.1:8000/openapi.json --phases examples,coverage,fuzzing
"""

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

pytest.importorskip("starlette", reason="HTTP needs the `serve` extra")
schemathesis = pytest.importorskip("schemathesis", reason="it is in the `test-all` extra")

from schemathesis import GenerationMode  # noqa: E402

POSTS = (
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/route",
    "/tokenize",
    "/detokenize",
)


@pytest.fixture(scope="module")
def client(chatting):
    template = "{% for each in messages %}{{ each.role }}: {{ each.content }}\n{% endfor %}"
    with chatting(template) as client:
        yield client


@pytest.fixture(scope="module")
def schema(client):
    return schemathesis.openapi.from_dict(client.get("/openapi.json").json())


@pytest.mark.parametrize("where", POSTS)
@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_every_generated_body_is_answered_or_refused(schema, client, where, mode):
    cases = schema[where]["POST"].as_strategy(generation_mode=mode)

    @settings(
        max_examples=15,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def ask(data):
        case = data.draw(cases)
        body = case.body
        if isinstance(body, dict) and data.draw(st.integers(0, 9)) < 9:
            body = body | {"model": "toy"}  # a generated name is no model: nothing else is read
        if isinstance(body, bytes):
            response = client.post(
                where, content=body, headers={"Content-Type": "application/json"}
            )
        else:
            response = client.post(where, json=body)
        assert response.status_code in (200, 400, 401, 404, 413, 415, 429), response.text
        if response.status_code != 200:
            assert set(response.json()["error"]) == {"message", "type", "param", "code"}

    ask()
    assert client.get("/healthz").json()["status"] == "ok"
