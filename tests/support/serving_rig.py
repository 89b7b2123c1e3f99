"""A model of a few thousand parameters, several of its paths, and a loop that serves them."""

import asyncio
import contextlib
import dataclasses
import functools
import json
import threading
from unittest import mock

import jax
import numpy as np

from dipaco.model import lm
from dipaco.model.config import ModelConfig, part_names
from dipaco.model.inference import prepare
from dipaco.model.spec import describe
from dipaco.serving.decoding import decode
from dipaco.serving.decoding.decode import LoopLimits
from dipaco.serving.decoding.loop import Loop
from dipaco.serving.decoding.mixing import LevelShape
from dipaco.serving.decoding.request_queue import Finish, GenerationRequest, Stream, Token
from dipaco.serving.dispatch import PathChoice, PromptRouter, dispatch
from dipaco.serving.fairness import FairThreads
from dipaco.serving.path_admission import PathAdmission

CONFIG = ModelConfig(
    vocab_size=64,
    d_model=16,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    d_ff=32,
    max_length=64,
)
NUM_PATHS = 3
LEVELS = (LevelShape(part_names(CONFIG), NUM_PATHS),)  # paths that share nothing

compilations: list[str] = []  # one entry more for every program that XLA compiles
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **_: compilations.append(event) if "backend_compile" in event else None
)


@functools.cache
def random_parts(path: int, config=CONFIG):
    """Parameters of a path, large enough that every one of them affects the logits."""
    rng = np.random.default_rng(path)
    return jax.tree.map(
        lambda spec: rng.normal(0, 0.5, spec.shape).astype(np.float32), describe(config)
    )


@functools.cache
def prepared(path: int):
    return prepare(CONFIG, random_parts(path))


def make_loop(parts_of=lambda key: contextlib.nullcontext(prepared(key[1])), **limits):
    """A loop of few and small shapes, run by the test itself."""
    few = LoopLimits(rows=6, rows_per_path=4, waiting=100, steps_per_block=4, smallest_slots=32)
    return Loop(CONFIG, parts_of, limits=dataclasses.replace(few, **limits), levels=LEVELS)


def request(prompt=(5, 9, 2), path=0, max_new_tokens=10, **more) -> GenerationRequest:
    key = more.get("release", ""), path  # in the place of modules
    return GenerationRequest(
        prompt_ids=tuple(prompt), path=path, modules=key, max_new_tokens=max_new_tokens, **more
    )


def run_until_idle(loop: Loop) -> None:
    while loop.run_once():
        pass


def read(stream: Stream) -> tuple[list[Token], Finish]:
    """The tokens and the end of a stream that has ended."""
    tokens = []
    while not isinstance(item := stream.get(timeout_seconds=0), Finish):
        tokens.append(item)
    return tokens, item


def ids(stream: Stream) -> list[int]:
    return [token.id for token in read(stream)[0]]


def one_by_one(loop: Loop, requests) -> list[list[int]]:
    """The tokens of each request, none of which is served beside another."""
    made = []
    for each in requests:
        stream = loop.submit(each)
        run_until_idle(loop)
        made.append(ids(stream))
    return made


@contextlib.contextmanager
def failing(program, is_bad=lambda tokens: True):
    """A program of the device fails for some tokens, after it has consumed the pool."""
    real = getattr(decode, program)

    def fails(config, prepared, pool, *arguments, **more):
        tokens = more["history_BS"] if program == "decode_block" else arguments[0]
        if is_bad(np.asarray(tokens)):
            jax.tree.map(lambda leaf: leaf.delete(), pool)
            raise RuntimeError("out of memory")
        return real(config, prepared, pool, *arguments, **more)

    with mock.patch.object(decode, program, fails):
        yield


def error_of(response, status, param=None, code=None):
    """The message of an error response, after checking its format."""
    assert response.status_code == status, response.text
    (name,) = response.json()
    detail = response.json()["error"]
    assert name == "error"
    assert set(detail) == {"message", "type", "param", "code"}
    assert detail["message"].rstrip()[-1] in ".?`)"
    if param is not None:
        assert detail["param"] == param
    if code is not None:
        assert detail["code"] == code
    return detail["message"]


def completion(client, body, **more):
    """What a server answers that can answer."""
    answer = client.post("/v1/completions", json=body, **more)
    assert answer.status_code == 200, answer.text
    return answer.json()


def post(body, size=0) -> tuple[bytes, bytes]:
    """Head and body of a request for a completion; the body has as many bytes, or more."""
    body = json.dumps(body).encode().ljust(size)
    fields = f"Content-Type: application/json\r\nContent-Length: {len(body)}"
    return f"POST /v1/completions HTTP/1.1\r\nHost: here\r\n{fields}\r\n\r\n".encode(), body


def events_of(answer):
    """The events of a stream that has ended as it should."""
    assert answer.headers["content-type"].startswith("text/event-stream"), answer.text
    *events, end = [line for line in answer.text.split("\n\n") if line]
    assert end == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events]


def full_logits(config, parts, ids):
    """float32 [tokens, V] by the full forward, without cache or batch. The context is filled up."""
    tokens = np.zeros((1, config.max_length), np.int32)
    tokens[0, : len(ids)] = ids
    return np.asarray(_full_forward(config, parts, tokens)[0])[0, : len(ids)]


_full_forward = jax.jit(lm.forward, static_argnums=0)


async def until(holds):
    """Waits for something that other tasks or threads bring about."""
    for _ in range(6000):
        if holds():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("the condition was not met in time")


def in_process(service):
    """A client of the service that needs no socket, and may ask for many things at once."""
    from dipaco.serving.http.app import make_app

    return asked_by(make_app(service), port=123)


def asked_by(app, port):
    """Such a client of an app, with a port of its own."""
    import httpx

    transport = httpx.ASGITransport(app, client=("127.0.0.1", port))
    return httpx.AsyncClient(transport=transport, base_url="http://here", timeout=60)


def path_bytes(folder) -> int:
    """Bytes that the first path of a run takes on disk."""
    from dipaco.serving.service import Service

    with Service(folder, say=lambda _: None) as service:
        modules = service.releases.current.modules_of(0)
    return sum(receipt.num_bytes for receipt in modules.values())


def route(service, served, prompt, path=None) -> PathChoice:
    """The path of a prompt, as the command line chooses it: it waits while paths are read."""
    return dispatch(service.run, served.release, prompt, path, service.dispatcher)


def prompt_router(service, num_threads=1, dispatcher=None) -> PromptRouter:
    """What a server of the service routes by."""
    threads = FairThreads(num_threads, "test")
    return PromptRouter(dispatcher or service.dispatcher, PathAdmission(service.cache), threads)


@contextlib.contextmanager
def running(config, listening):
    """A server behind a socket, as uvicorn's configuration says."""
    import uvicorn

    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()


async def ask_and_leave(
    app, body: bytes, leaves: asyncio.Event, path: str = "/v1/completions"
) -> int:
    """Sends a request to an app, and disconnects when told so. The status of the answer."""
    sent, statuses = iter([body]), []

    async def receive():
        if (content := next(sent, None)) is not None:
            return {"type": "http.request", "body": content}
        await leaves.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        statuses.append(message.get("status"))

    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "headers": [(b"content-type", b"application/json")],
        "query_string": b"",
        "asgi": {"spec_version": "2.3"},
    }
    await app(scope, receive, send)
    return statuses[0]


def byte_level(tokens=None, merges=()):
    """A tokenizer of these tokens, or of one for each byte."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokens = sorted(pre_tokenizers.ByteLevel.alphabet()) if tokens is None else tokens
    vocabulary = {each: number for number, each in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def object_of(**properties) -> dict:
    """The schema of an object that has these properties, and no other."""
    required = {"required": [*properties], "additionalProperties": False}
    return {"type": "object", "properties": properties} | required


class ForcedTokens:
    """What a plan of a block asks of a grammar: the next tokens are 0, 1, 2, ..."""

    def __init__(self, num_forced, *, is_over=False, is_steady=False):
        self.forced, self.is_over, self.is_steady = range(num_forced), is_over, is_steady
