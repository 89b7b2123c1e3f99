"""/v1/embeddings: the features by which the router chooses, in OpenAI's shape.

The mean hidden state under the base model of a text's first `routing.prefix_tokens` (32) tokens,
scaled to length 1 as OpenAI's are. What follows is neither read nor counted.
"""

import base64
from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta, Struct

from dipaco.serving.http.errors import ApiError
from dipaco.serving.http.protocol import TokenId
from dipaco.serving.http.requests import check_known, prompt_list
from dipaco.serving.service import Service

MAX_INPUTS = 2048  # texts of one request, as at OpenAI


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


def embed(service: Service, body: EmbeddingRequest) -> EmbeddingList:
    """Raises `ApiError`, `NoSuchModel`."""
    model = service.models.named(body.model)
    if not model.is_routed:
        raise ApiError(
            400,
            f"`{model.name}` has no router, and embeddings are the features that a router reads.",
            param="model",
            code="no_embeddings",
        )
    given = prompt_list(body.input, "input")
    if len(given) > MAX_INPUTS:
        problem = f"{len(given)} texts are too many for one request: at most {MAX_INPUTS}."
        raise ApiError(400, problem, param="input", code="invalid_value")
    prefixes = [_prefix(service, each) for each in given]
    vectors_ND = service.features(prefixes)
    if body.dimensions not in (None, size := vectors_ND.shape[1]):
        problem = f"`dimensions` is {body.dimensions}, and embeddings of this model have {size}."
        raise ApiError(400, f"{problem} Leave it out.", param="dimensions", code="invalid_value")
    norms_N1 = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    vectors_ND = (vectors_ND / np.maximum(norms_N1, 1e-12)).astype("<f4")
    is_base64 = body.encoding_format == "base64"
    num_tokens = sum(map(len, prefixes))
    return EmbeddingList(
        object="list",
        data=[
            Embedding(
                object="embedding",
                index=index,
                embedding=base64.b64encode(vector_D.tobytes()).decode()
                if is_base64
                else vector_D.tolist(),
            )
            for index, vector_D in enumerate(vectors_ND)
        ],
        model=model.name,
        usage=EmbeddingUsage(prompt_tokens=num_tokens, total_tokens=num_tokens),
    )


def _prefix(service: Service, given: str | Sequence[int]) -> np.ndarray:
    """The tokens of a text that are read, int32."""
    most = service.prefix_tokens
    if isinstance(given, str):
        # The tokens that are read lie in half of this; the rest only sets off the last of them.
        (ids,) = service.tokenizer.encode([given[: 2 * most * service.longest_token_bytes]])
    else:
        check_known(service, "input", given)
        ids = np.array(given, np.int32)
    prefix = service.text_of(ids)[:most]
    if not len(prefix):
        problem = "A text of `input` is empty. Give at least one token."
        raise ApiError(400, problem, param="input", code="invalid_value")
    return prefix
