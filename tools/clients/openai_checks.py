"""Checks of the `openai` package."""

import asyncio
import json
from typing import Any

from clients.checks import OTHER, PROMPT, SCHEMA, Check, Server, imported, need, refused, run_checks

openai = imported("openai")
ASKED = [{"role": "user", "content": PROMPT}]


def _client(server: Server) -> Any:
    return openai.OpenAI(base_url=server.base_url, api_key=server.key, max_retries=0)


def models(server: Server) -> None:
    names = [model.id for model in _client(server).models.list()]
    need(server.model in names, names)
    need(_client(server).models.retrieve(server.model).id == server.model, server.model)


def completion(server: Server) -> None:
    answer = _client(server).completions.create(
        model=server.model, prompt=[PROMPT, OTHER], n=2, max_tokens=6, temperature=1.2, stop=["\n"]
    )
    need(len(answer.choices) == 4, answer.choices)
    need(all(choice.finish_reason in ("stop", "length") for choice in answer.choices), answer)
    need(answer.usage.completion_tokens > 0, answer.usage)


def seed(server: Server) -> None:
    def drawn() -> list[str]:
        answer = _client(server).completions.create(
            model=server.model, prompt=PROMPT, n=3, max_tokens=12, temperature=1.5, seed=7
        )
        return [choice.text for choice in answer.choices]

    first = drawn()
    need(first == drawn(), first)
    need(len(set(first)) == 3, first)


def completion_stream(server: Server) -> None:
    body = {"model": server.model, "prompt": PROMPT, "max_tokens": 12, "temperature": 0}
    whole = _client(server).completions.create(**body)
    pieces = list(
        _client(server).completions.create(
            **body, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(choice.text for piece in pieces for choice in piece.choices)
    need(text == whole.choices[0].text, (text, whole.choices[0].text))
    need(pieces[-1].usage == whole.usage, pieces[-1].usage)


def completion_logprobs(server: Server) -> None:
    answer = _client(server).completions.create(
        model=server.model, prompt=PROMPT, max_tokens=5, logprobs=2, echo=True, temperature=0
    )
    found = answer.choices[0].logprobs
    need(len(found.tokens) == answer.usage.total_tokens, found.tokens)
    need(found.token_logprobs[0] is None, found.token_logprobs)
    need(all(each <= 0 for each in found.token_logprobs[1:]), found.token_logprobs)
    need(len(found.top_logprobs[-1]) >= 2, found.top_logprobs[-1])


def chat(server: Server) -> None:
    answer = _client(server).chat.completions.create(
        model=server.model, messages=ASKED, max_completion_tokens=6, n=2
    )
    need(len(answer.choices) == 2, answer.choices)
    need(all(choice.message.role == "assistant" for choice in answer.choices), answer.choices)


def chat_stream(server: Server) -> None:
    body = {"model": server.model, "messages": ASKED, "max_tokens": 12, "temperature": 0}
    whole = _client(server).chat.completions.create(**body).choices[0].message.content
    with _client(server).chat.completions.create(**body, stream=True) as pieces:
        text = "".join(piece.choices[0].delta.content or "" for piece in pieces)
    need(text == whole, (text, whole))


def chat_logprobs(server: Server) -> None:
    answer = _client(server).chat.completions.create(
        model=server.model, messages=ASKED, max_tokens=5, logprobs=True, top_logprobs=3
    )
    found = answer.choices[0].logprobs.content
    need(found and all(len(token.top_logprobs) == 3 for token in found), found)


def structured(server: Server) -> None:
    """A schema, as the package makes it of a Pydantic model."""
    pydantic = imported("pydantic")

    class Answer(pydantic.BaseModel):
        sure: bool
        digits: int = pydantic.Field(ge=0, le=99)

    answer = _client(server).chat.completions.parse(
        model=server.model, messages=ASKED, response_format=Answer
    )
    found = answer.choices[0].message.parsed
    need(isinstance(found, Answer) and 0 <= found.digits <= 99, found)


def structured_completion(server: Server) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
    answer = _client(server).completions.create(
        model=server.model, prompt=PROMPT, max_tokens=50, extra_body={"response_format": wanted}
    )
    found = json.loads(answer.choices[0].text)
    need(set(found) == {"sure", "digits"}, found)


def asynchronous(server: Server) -> None:
    """Eight streams at once."""

    async def one(client: Any) -> int:
        stream = await client.completions.create(
            model=server.model, prompt=PROMPT, max_tokens=8, stream=True
        )
        return len([piece async for piece in stream])

    async def all_of_them() -> list[int]:
        async with openai.AsyncOpenAI(
            base_url=server.base_url, api_key=server.key, max_retries=0
        ) as client:
            return await asyncio.gather(*(one(client) for _ in range(8)))

    found = asyncio.run(all_of_them())
    need(all(found), found)


def errors(server: Server) -> None:
    """Each as the package's own error, with a sentence."""
    ask = _client(server).completions.create
    known = {"model": server.model, "prompt": PROMPT}
    refused(lambda: ask(model="no-such", prompt=PROMPT), openai.NotFoundError, "no-such")
    refused(lambda: ask(**known, temperature=9), openai.BadRequestError, "temperature")
    refused(lambda: ask(**known, suffix="a"), openai.BadRequestError, "suffix")
    refused(
        lambda: ask(model=server.model, prompt="z " * 1_000_000), openai.BadRequestError, "context"
    )


def responses(server: Server) -> None:
    """The newer names of a chat, whole and as events."""
    body = {"model": server.model, "input": ASKED, "max_output_tokens": 12, "temperature": 0}
    whole = _client(server).responses.create(**body)
    need(whole.output_text and whole.usage.output_tokens > 0, whole)
    with _client(server).responses.create(**body, stream=True) as events:
        kinds, texts = zip(
            *((each.type, getattr(each, "delta", "")) for each in events), strict=True
        )
    need("".join(texts) == whole.output_text, texts)
    need(kinds[-1] in ("response.completed", "response.incomplete"), kinds)
    refused(
        lambda: _client(server).responses.create(**body, previous_response_id=whole.id),
        openai.BadRequestError,
        "No answers are kept",
    )


def tools(server: Server) -> None:
    tool = {"type": "function", "function": {"name": "add", "parameters": SCHEMA}}
    ask = _client(server).chat.completions.create
    refused(
        lambda: ask(model=server.model, messages=ASKED, tools=[tool]),
        openai.BadRequestError,
        "There are no tools",
    )


CHECKS = (
    Check("the list of models", models),
    Check("completions: two prompts, two choices each", completion),
    Check("a seed repeats its texts", seed),
    Check("a stream is the whole completion", completion_stream),
    Check("log-probabilities of a completion, with its prompt", completion_logprobs),
    Check("a completion by a schema", structured_completion),
    Check("eight streams at once, asynchronously", asynchronous),
    Check("errors are the package's own", errors),
    Check("a chat", chat),
    Check("a stream is the whole chat", chat_stream),
    Check("log-probabilities of a chat", chat_logprobs),
    Check("a chat parsed into a Pydantic model", structured),
    Check("a response, as one and as events", responses),
    Check("tools are refused with a sentence", tools),
)

if __name__ == "__main__":
    run_checks("openai", CHECKS)
