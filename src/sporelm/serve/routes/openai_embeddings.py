"""/v1/embeddings: texts as vectors."""

import base64
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from sporelm.errors import RequestError
from sporelm.serve.answering import in_thread_if
from sporelm.serve.endpoint import Body, Call, Endpoint
from sporelm.serve.failures import Refusal
from sporelm.serve.routes.openai_completions import prompts_of
from sporelm.serve.served_model import ServedModel


class EmbeddingRequest(Body, kw_only=True):
    """`input` is a text, token ids, or a list of either."""

    input: str | list[str | int | list[int]]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=1 << 20)] | None = None
    pooling: Literal["mean", "last", "cls"] | None = None
    prompt_name: str | None = None
    truncate: bool = False
    user: str | None = None


class Embedding(msgspec.Struct):
    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class EmbeddingUsage(msgspec.Struct):
    prompt_tokens: int
    total_tokens: int


class Embeddings(msgspec.Struct):
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
    object: Literal["list"] = "list"


async def embeddings(call: Call, body: EmbeddingRequest) -> Embeddings:
    """A vector of length 1 for each text: what the model makes of its tokens, as its files say that they are pooled, or
    their mean; or as `pooling` says."""
    check_count(call, body.input)
    model = await call.model(body.model)
    llm = model.llm.llm
    name, cuts = body.prompt_name, body.truncate
    prompts = await in_thread_if(
        call.large, lambda: prompts_of(body.input, llm, lambda text: llm.embed_ids(text, name, truncate=cuts))
    )
    vectors = await embedded(call, model, prompts, body.pooling)
    width = vectors.shape[1]
    if body.dimensions is not None and body.dimensions != width:
        raise RequestError(f"dimensions is {body.dimensions}: vectors of {model.name} have {width}, which are not cut")
    count = sum(map(len, prompts))
    data = [Embedding(index, written(vector, body.encoding_format)) for index, vector in enumerate(vectors)]
    return Embeddings(data, model.name, EmbeddingUsage(count, count))


def check_count(call: Call, given: str | Sequence[str | int | list[int]], param: str = "input") -> None:
    """Raise Refusal for more texts than one request may have."""
    most = call.server.config.max_prompts
    if not isinstance(given, str) and given and not isinstance(given[0], int) and len(given) > most:
        raise Refusal(
            400,
            f"{len(given)} texts are too many: at most {most} are taken in one request (max_prompts)",
            code="too_many_prompts",
            param=param,
        )


async def embedded(
    call: Call, model: ServedModel, prompts: list[list[int]], pooling: str | None
) -> NDArray[np.float32]:
    """A vector for each prompt: float32 [prompts, width]. Others' requests go on meanwhile; who leaves ends it.

    Raises RequestError, ContextOverflow for any of them, before the first one is computed.
    """
    for ids in prompts:
        model.llm.llm.engine.limits.check_prompt(len(ids))
    return await model.llm.embed(prompts, pooling=pooling)


def written(vector: NDArray[np.float32], form: str | None) -> list[float] | str:
    """A vector as numbers, or its little-endian float32 bytes in base64."""
    if form == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    numbers: list[float] = vector.tolist()
    return numbers


ENDPOINTS: list[Endpoint] = [Endpoint("POST", "/v1/embeddings", embeddings, body=EmbeddingRequest, reply=Embeddings)]
