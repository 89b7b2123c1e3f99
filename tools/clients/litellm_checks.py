"""LiteLLM: `openai/NAME` for chats, `text-completion-openai/NAME` for completions."""

import asyncio
import json
import os

from clients.checks import PROMPT, SCHEMA, Check, Server, imported, need, refused, run_checks

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else importing it asks the network
litellm = imported("litellm")
litellm.suppress_debug_info = True
ASKED = [{"role": "user", "content": PROMPT}]


def _settings(server: Server, provider: str = "openai") -> dict:
    return {
        "model": f"{provider}/{server.model}",
        "api_base": server.base_url,
        "api_key": server.key,
        "num_retries": 0,
    }


def _chat(server: Server) -> dict:
    return _settings(server) | {"messages": ASKED}


def _text(server: Server) -> dict:
    return _settings(server, "text-completion-openai") | {"prompt": PROMPT}


def chat(server: Server) -> None:
    answer = litellm.completion(
        **_chat(server),
        max_tokens=6,
        n=2,
        temperature=0.3,
        top_p=0.9,
        stop=["x"],
        presence_penalty=0.1,
        frequency_penalty=0.1,
        logit_bias={"5": -3},
        seed=1,
    )
    need(len(answer.choices) == 2 and answer.usage.completion_tokens > 0, answer)


def chat_stream(server: Server) -> None:
    body = _chat(server) | {"max_tokens": 8, "temperature": 0}
    whole = litellm.completion(**body).choices[0].message.content
    pieces = list(litellm.completion(**body, stream=True, stream_options={"include_usage": True}))
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    need(text == whole, (text, whole))


def chat_asynchronous(server: Server) -> None:
    async def pieces() -> int:
        stream = await litellm.acompletion(**_chat(server), max_tokens=8, stream=True)
        return len([piece async for piece in stream])

    need(asyncio.run(pieces()), "an empty stream")


def chat_logprobs(server: Server) -> None:
    answer = litellm.completion(**_chat(server), max_tokens=5, logprobs=True, top_logprobs=2)
    found = answer.choices[0].logprobs.content
    need(found and len(found[0].top_logprobs) == 2, found)


def structured(server: Server) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
    answer = litellm.completion(**_chat(server), response_format=wanted)
    found = json.loads(answer.choices[0].message.content)
    need(set(found) == {"sure", "digits"}, found)


def completion(server: Server) -> None:
    answer = litellm.text_completion(**_text(server), max_tokens=5, logprobs=2, echo=True)
    need(answer.choices[0].text.startswith(PROMPT), answer)
    need(len(answer.choices[0].logprobs.tokens) == answer.usage.total_tokens, answer)


def completion_stream(server: Server) -> None:
    body = _text(server) | {"max_tokens": 8, "temperature": 0}
    whole = litellm.text_completion(**body).choices[0].text
    pieces = litellm.text_completion(**body, stream=True)
    text = "".join(piece.choices[0].text or "" for piece in pieces if piece.choices)
    need(text == whole, (text, whole))


def errors(server: Server) -> None:
    unknown = _text(server) | {"model": "text-completion-openai/no-such"}
    refused(lambda: litellm.text_completion(**unknown), litellm.NotFoundError, "no-such")
    wrong = _text(server) | {"temperature": 9}
    refused(lambda: litellm.text_completion(**wrong), litellm.BadRequestError, "temperature")


CHECKS = (
    Check("text-completion-openai/NAME, with its prompt and log-probabilities", completion),
    Check("text-completion-openai/NAME: a stream is the whole completion", completion_stream),
    Check("errors are the package's own", errors),
    Check("openai/NAME, a chat of two choices with all settings", chat),
    Check("openai/NAME: a stream is the whole chat", chat_stream),
    Check("openai/NAME: an asynchronous stream", chat_asynchronous),
    Check("openai/NAME: log-probabilities of a chat", chat_logprobs),
    Check("openai/NAME: a chat by a schema", structured),
)

if __name__ == "__main__":
    run_checks("litellm", CHECKS)
