"""`langchain-openai`: chats, completions, streams and structured output."""

import asyncio
from typing import Any

from clients.checks import OTHER, PROMPT, SCHEMA, Check, Server, imported, need, refused, run_checks

openai, langchain = imported("openai"), imported("langchain_openai")


def _settings(server: Server) -> dict:
    return {
        "model": server.model,
        "base_url": server.base_url,
        "api_key": server.key,
        "max_retries": 0,
    }


def _chat(server: Server, **settings: object) -> Any:
    return langchain.ChatOpenAI(**_settings(server), **settings)


def chat(server: Server) -> None:
    messages = [("system", "be brief"), ("human", PROMPT)]
    answer = _chat(server, max_tokens=8, temperature=0.5, stop=["\n"]).invoke(messages)
    need(answer.type == "ai" and answer.usage_metadata["output_tokens"] > 0, answer)


def chat_stream(server: Server) -> None:
    client = _chat(server, max_tokens=8, temperature=0, stream_usage=True)
    pieces = list(client.stream(PROMPT))
    text = "".join(piece.content for piece in pieces)
    need(text == client.invoke(PROMPT).content, text)
    need(any(piece.usage_metadata for piece in pieces), pieces)


def chat_asynchronous(server: Server) -> None:
    async def pieces() -> int:
        return len([each async for each in _chat(server, max_tokens=8).astream(PROMPT)])

    need(asyncio.run(pieces()), "an empty stream")


def chat_batch(server: Server) -> None:
    answers = _chat(server, max_tokens=4, n=1, seed=3).batch([PROMPT, OTHER, PROMPT])
    need(len(answers) == 3, answers)


def chat_logprobs(server: Server) -> None:
    answer = _chat(server, max_tokens=5, logprobs=True, top_logprobs=2).invoke(PROMPT)
    found = answer.response_metadata["logprobs"]["content"]
    need(found and len(found[0]["top_logprobs"]) == 2, found)


def structured(server: Server) -> None:
    pydantic = imported("pydantic")

    class Answer(pydantic.BaseModel):
        """An answer."""

        sure: bool
        digits: int = pydantic.Field(ge=0, le=99)

    wanted = _chat(server).with_structured_output(Answer, method="json_schema")
    for _ in range(5):
        found = wanted.invoke(PROMPT)
        need(isinstance(found, Answer), found)


def json_mode(server: Server) -> None:
    wanted = _chat(server).bind(
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True},
        }
    )
    found = wanted.invoke(PROMPT).content
    need('"sure":' in found, found)


def tools(server: Server) -> None:
    tool = {"type": "function", "function": {"name": "add", "parameters": SCHEMA}}
    asking = _chat(server).bind_tools([tool])
    refused(lambda: asking.invoke(PROMPT), openai.BadRequestError, "There are no tools")


def completion(server: Server) -> None:
    answer = langchain.OpenAI(**_settings(server), max_tokens=5, n=2, best_of=2).generate(
        [PROMPT, OTHER]
    )
    need([len(each) for each in answer.generations] == [2, 2], answer.generations)


def completion_stream(server: Server) -> None:
    client = langchain.OpenAI(**_settings(server), max_tokens=8, temperature=0)
    text = "".join(client.stream(PROMPT))
    need(text == client.invoke(PROMPT), text)


CHECKS = (
    Check("completions: two prompts, two choices each", completion),
    Check("a stream is the whole completion", completion_stream),
    Check("a chat", chat),
    Check("a stream is the whole chat", chat_stream),
    Check("an asynchronous stream", chat_asynchronous),
    Check("three chats in a batch", chat_batch),
    Check("log-probabilities of a chat", chat_logprobs),
    Check("structured output of a Pydantic model, five times", structured),
    Check("a chat by a schema", json_mode),
    Check("tools are refused with a sentence", tools),
)

if __name__ == "__main__":
    run_checks("langchain-openai", CHECKS)
