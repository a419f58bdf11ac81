"""/v1/rerank and /rerank: documents by how well they answer a query, as Jina's and Cohere's clients ask for them."""

from typing import Annotated
from uuid import uuid4

import msgspec
from msgspec import Meta

from sporelm.api.reranking import pairs_of, ranked, scored
from sporelm.serve.answering import in_thread_if
from sporelm.serve.endpoint import LARGE, Body, Call, Endpoint
from sporelm.serve.routes.openai_embeddings import EmbeddingUsage, check_count

FRAME = 256  # characters of a template around a query and a document, about


class RerankDocument(msgspec.Struct, forbid_unknown_fields=True):
    text: str


class RerankRequest(Body, kw_only=True):
    """`documents` are texts, or objects with a text."""

    query: str
    documents: list[str | RerankDocument]
    model: str | None = None
    top_n: Annotated[int, Meta(ge=1)] | None = None
    return_documents: bool = False
    normalize: bool = True
    user: str | None = None


class RerankResult(msgspec.Struct, omit_defaults=True):
    index: int
    relevance_score: float
    document: RerankDocument | None = None


class Reranked(msgspec.Struct):
    id: str
    model: str
    results: list[RerankResult]
    usage: EmbeddingUsage
    object: str = "list"


async def rerank(call: Call, body: RerankRequest) -> Reranked:
    """Documents by how well they answer the query, the best first. A score is between 0 and 1, or with `normalize`
    false what the model's head says. Pairs that are too long are refused, never cut."""
    documents = [each if isinstance(each, str) else each.text for each in body.documents]
    check_count(call, documents, "documents")
    model = await call.model(body.model)
    llm = model.llm.llm
    # the query, and a template, are read with each document
    large = call.large or len(documents) * (FRAME + len(body.query)) > LARGE
    pairs = await in_thread_if(large, lambda: pairs_of(llm, body.query, documents, body.top_n))
    scores = await model.llm.stepwise(scored(llm, pairs))
    results = [
        RerankResult(each.index, each.score, RerankDocument(documents[each.index]) if body.return_documents else None)
        for each in ranked(scores, body.top_n, normalize=body.normalize)
    ]
    count = sum(len(pair.tokens) for pair in pairs)
    return Reranked(f"rerank-{uuid4().hex}", model.name, results, EmbeddingUsage(count, count))


ENDPOINTS: list[Endpoint] = [
    Endpoint("POST", path, rerank, body=RerankRequest, reply=Reranked) for path in ("/v1/rerank", "/rerank")
]
