"""An answer to a value that a field may not have says which it may have."""

import json

import pytest

pytest.importorskip("starlette", reason="HTTP needs the `serve` extra")

from dipaco.serving.http.errors import ApiError
from dipaco.serving.http.protocol import ChatRequest
from dipaco.serving.http.requests import decode

CHAT = {"model": "toy", "messages": [{"role": "user", "content": "jiji"}]}


@pytest.mark.parametrize(
    ("kind", "body", "said"),
    [
        (
            ChatRequest,
            CHAT | {"service_tier": "x"},
            "`service_tier`: Invalid enum value 'x'; expected is 'auto' or 'default'.",
        ),
        (
            ChatRequest,
            CHAT | {"messages": [{"role": "me", "content": "jiji"}]},
            "'me'; expected is 'assistant' or 'developer' or 'system' or 'user'.",
        ),
        (ChatRequest, CHAT | {"temperature": "hot"}, "Expected `float | null`, got `str`."),
    ],
    ids=lambda value: "" if isinstance(value, type | dict) else value[:20],
)
def test_it_names_the_values(kind, body, said):
    with pytest.raises(ApiError) as raised:
        decode(json.dumps(body).encode(), kind)
    assert raised.value.detail.message.endswith(said)
