"""/v1/embeddings: texts as vectors."""

import base64
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from sporelm.errors import RequestError
from sporelm.serve.chat.answer_stream import run_in_thread_if
from sporelm.serve.http.api_call import ApiCall
from sporelm.serve.http.api_errors import ApiError
from sporelm.serve.http.endpoint import Endpoint
from sporelm.serve.http.json_body import RequestBody
from sporelm.serve.model_pool.served_model import ServedModel
from sporelm.serve.routes.openai_completions import prompt_id_lists


class EmbeddingRequest(RequestBody, kw_only=True):
    """`input` is a text, token ids, or a list of either."""

    input: str | list[str | int | list[int]]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=1 << 20)] | None = None
    pooling: Literal["mean", "last", "cls"] | None = None
    prompt_name: str | None = None
    truncate: bool = False
    user: str | None = None


class EmbeddingVector(msgspec.Struct):
    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class EmbeddingUsage(msgspec.Struct):
    prompt_tokens: int
    total_tokens: int


class EmbeddingReply(msgspec.Struct):
    data: list[EmbeddingVector]
    model: str
    usage: EmbeddingUsage
    object: Literal["list"] = "list"


async def embeddings(call: ApiCall, body: EmbeddingRequest) -> EmbeddingReply:
    """A vector of length 1 for each text: the model's last hidden states, pooled as `pooling` or the model's files say,
    or their mean."""
    check_num_texts(call, body.input)
    model = await call.model(body.model)
    llm = model.llm
    prompts = await run_in_thread_if(
        call.is_large,
        lambda: prompt_id_lists(
            body.input, lambda text: llm.embed_ids(text, body.prompt_name, truncate=body.truncate), "input"
        ),
    )
    vectors = await embed_prompts(model, prompts, body.pooling)
    width = vectors.shape[1]
    if body.dimensions is not None and body.dimensions != width:
        raise RequestError(
            f"dimensions is {body.dimensions}: vectors of {model.name} have {width}, which are not truncated"
        )
    num_tokens = sum(map(len, prompts))
    data = [EmbeddingVector(index, encode_vector(each, body.encoding_format)) for index, each in enumerate(vectors)]
    return EmbeddingReply(data, model.name, EmbeddingUsage(num_tokens, num_tokens))


def check_num_texts(call: ApiCall, texts: str | Sequence[str | int | list[int]], param: str = "input") -> None:
    """Raise ApiError for more texts than one request may have."""
    max_texts = call.server.config.max_prompts
    if not isinstance(texts, str) and texts and not isinstance(texts[0], int) and len(texts) > max_texts:
        raise ApiError(
            400,
            f"{len(texts)} texts are too many: at most {max_texts} are allowed in one request (max_prompts)",
            code="too_many_prompts",
            param=param,
        )


async def embed_prompts(model: ServedModel, prompts: list[list[int]], pooling: str | None) -> NDArray[np.float32]:
    """Return a vector for each prompt: float32 [prompts, width]. Other requests go on meanwhile.

    Raises RequestError, and ContextOverflow for any of the prompts before the first one is computed.
    """
    for ids in prompts:
        model.llm.check_prompt_length(len(ids))
    return await model.async_llm.embed(prompts, pooling=pooling)


def encode_vector(vector: NDArray[np.float32], encoding_format: str | None) -> list[float] | str:
    """Return a vector as numbers, or as its little-endian float32 bytes in base64."""
    if encoding_format == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    numbers: list[float] = vector.tolist()
    return numbers


ENDPOINTS: list[Endpoint] = [
    Endpoint("POST", "/v1/embeddings", embeddings, body=EmbeddingRequest, reply=EmbeddingReply)
]
