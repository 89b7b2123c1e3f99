"""/v1/embeddings: the features by which the router chooses, in OpenAI's shape.

The mean hidden state under the base model of a text's first `data.prefix_tokens` (32) tokens,
scaled to length 1 as OpenAI's are. What follows is neither read nor counted.
"""

import base64
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Literal, TypeVar

import msgspec
import numpy as np
from msgspec import Meta, Struct

from dipaco.serving.errors import QueueFull
from dipaco.serving.fair_threads import FairThreads
from dipaco.serving.fairness import ClientPlaces
from dipaco.serving.http.errors import ApiError
from dipaco.serving.http.protocol import TokenId
from dipaco.serving.http.requests import check_known, prompt_list
from dipaco.serving.models import ServedModel
from dipaco.serving.service import Service

MAX_INPUTS = 2048  # texts of one request, as at OpenAI
MOST_REQUESTS = 16  # requests at once
TEXTS_PER_TURN = 16  # read before another client's: four batches
Text = TypeVar("Text")
Made = TypeVar("Made")


class EmbeddingRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/embeddings."""

    model: str
    # One or several texts, each as text or token ids.
    input: str | list[str | TokenId | list[TokenId]]
    encoding_format: Literal["float", "base64"] | None = None  # "float"
    dimensions: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None  # only as many as there are
    user: str | None = None  # accepted and ignored


class Embedding(Struct, kw_only=True):
    """The embedding of one text: float32 values, or in base64 their bytes, little end first."""

    object: str
    index: int
    embedding: list[float] | str


class EmbeddingUsage(Struct, kw_only=True):
    """Tokens that were read."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(Struct, kw_only=True):
    """The response of /v1/embeddings."""

    object: str
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


class Embedder:
    """One for all requests of a service, used in one event loop only. Clients share its places, and
    a turn is a few texts: a client that sends thousands delays others by one turn.

    Args:
      service: its router reads the texts.
    """

    def __init__(self, service: Service):
        self._service = service
        self._places = ClientPlaces()  # places of requests
        # A separate thread: one request may have 2,048 texts, and routing is not to wait for them.
        self._threads = FairThreads(1, "embeddings")

    async def embed(self, body: EmbeddingRequest, client: str) -> bytes:
        """The answer to a client's request, an `EmbeddingList` as JSON. Once it is cancelled, no
        further texts are read.

        Raises:
          QueueFull: there are too many now, and the client has its share of them.
          ApiError, NoSuchModel: it cannot be answered.
        """
        if not self._places.take(client, 1, MOST_REQUESTS):
            raise QueueFull(waiting=self._places.num_held, retry_after_seconds=1)
        try:
            model = _embedding_model(self._service, body)
            given = await self._threads.run(client, _texts, body)
            prefixes = await self._in_turns(client, self._prefixes, given)
            read = functools.partial(self._vectors, body.dimensions)
            vectors = await self._in_turns(client, read, prefixes)
            num_tokens = sum(map(len, prefixes))
            return await self._threads.run(client, _answer, body, model.name, vectors, num_tokens)
        finally:
            self._places.give_back(client)

    async def _in_turns(
        self, client: str, read: Callable[[Sequence[Text]], Iterable[Made]], texts: Sequence[Text]
    ) -> list[Made]:
        """Applies a function to texts, a few at a time."""
        made: list[Made] = []
        for first in range(0, len(texts), TEXTS_PER_TURN):
            few = texts[first : first + TEXTS_PER_TURN]
            made.extend(await self._threads.run(client, read, few))
        return made

    def _prefixes(self, given: Sequence[str | Sequence[int]]) -> list[np.ndarray]:
        return [_prefix(self._service, each) for each in given]

    def _vectors(self, dimensions: int | None, prefixes: Sequence[np.ndarray]) -> np.ndarray:
        """float32 [N, D], each of length 1."""
        vectors_ND = self._service.features(prefixes)
        if dimensions not in (None, size := vectors_ND.shape[1]):
            problem = f"`dimensions` is {dimensions}, and embeddings of this model have {size}."
            raise ApiError(
                400, f"{problem} Leave it out.", param="dimensions", code="invalid_value"
            )
        norms_N1 = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
        return (vectors_ND / np.maximum(norms_N1, 1e-12)).astype("<f4")


def _embedding_model(service: Service, body: EmbeddingRequest) -> ServedModel:
    """The model that is asked for. Raises `ApiError`, `NoSuchModel`."""
    model = service.models.named(body.model)
    if not model.is_routed:
        raise ApiError(
            400,
            f"`{model.name}` has no router, and embeddings are the features that a router reads.",
            param="model",
            code="no_embeddings",
        )
    return model


def _texts(body: EmbeddingRequest) -> list[str | list[int]]:
    given = prompt_list(body.input, "input")
    if len(given) > MAX_INPUTS:
        problem = f"{len(given)} texts are too many for one request: at most {MAX_INPUTS}."
        raise ApiError(400, problem, param="input", code="invalid_value")
    return given


def _answer(
    body: EmbeddingRequest, model: str, vectors: Sequence[np.ndarray], num_tokens: int
) -> bytes:
    """JSON of an `EmbeddingList`. Each embedding is written by itself: the writer holds the
    interpreter, and with it the event loop, until it is done.
    """
    written: list[bytes] = []
    for index, vector_D in enumerate(vectors):
        is_base64 = body.encoding_format == "base64"
        values = base64.b64encode(vector_D.tobytes()).decode() if is_base64 else vector_D.tolist()
        embedding = Embedding(object="embedding", index=index, embedding=values)
        written.append(msgspec.json.encode(embedding))
    usage = EmbeddingUsage(prompt_tokens=num_tokens, total_tokens=num_tokens)
    empty = msgspec.json.encode(EmbeddingList(object="list", data=[], model=model, usage=usage))
    before, after = empty.split(b"[]", 1)
    return b"".join((before, b"[", b",".join(written), b"]", after))


def _prefix(service: Service, given: str | Sequence[int]) -> np.ndarray:
    """The tokens of a text that are read, int32."""
    most = service.prefix_tokens
    if isinstance(given, str):
        # The tokens that are read lie in half of this. The rest only sets off the last of them.
        (ids,) = service.tokenizer.encode([given[: 2 * most * service.longest_token_bytes]])
    else:
        check_known(service, "input", given)
        ids = np.array(given, np.int32)
    prefix = service.text_of(ids)[:most]
    if not len(prefix):
        problem = "A text of `input` is empty. Give at least one token."
        raise ApiError(400, problem, param="input", code="invalid_value")
    return prefix
