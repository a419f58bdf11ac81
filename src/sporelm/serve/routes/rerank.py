"""/v1/rerank and /rerank: documents ranked by a query, as in the APIs of Jina and Cohere."""

from typing import Annotated
from uuid import uuid4

import msgspec
from msgspec import Meta

from sporelm.api.document_ranking import encode_pairs, score_texts, sort_by_score
from sporelm.serve.chat.answer_stream import run_in_thread_if
from sporelm.serve.http.api_call import LARGE_BYTES, ApiCall
from sporelm.serve.http.endpoint import Endpoint
from sporelm.serve.http.json_body import RequestBody
from sporelm.serve.routes.openai_embeddings import EmbeddingUsage, check_num_texts

TEMPLATE_CHARACTERS = 256  # of a template around a query and a document, about


class RerankDocument(msgspec.Struct, forbid_unknown_fields=True):
    text: str


class RerankRequest(RequestBody, kw_only=True):
    """`documents` are texts, or objects with a text."""

    query: str
    documents: list[str | RerankDocument]
    model: str | None = None
    top_n: Annotated[int, Meta(ge=1)] | None = None
    return_documents: bool = False
    normalize: bool = True
    user: str | None = None


class RerankReplyItem(msgspec.Struct, omit_defaults=True):
    index: int
    relevance_score: float
    document: RerankDocument | None = None


class RerankReply(msgspec.Struct):
    id: str
    model: str
    results: list[RerankReplyItem]
    usage: EmbeddingUsage
    object: str = "list"


async def rerank(call: ApiCall, body: RerankRequest) -> RerankReply:
    """Documents ranked by how well they answer the query, the best first. A score is between 0 and 1, or with
    `normalize` false the raw output of the model's head. Pairs that are too long are refused, never truncated."""
    documents = [each if isinstance(each, str) else each.text for each in body.documents]
    check_num_texts(call, documents, "documents")
    model = await call.model(body.model)
    llm = model.llm
    # The query and a template are tokenized with each document.
    is_large = call.is_large or len(documents) * (TEMPLATE_CHARACTERS + len(body.query)) > LARGE_BYTES
    pairs = await run_in_thread_if(is_large, lambda: encode_pairs(llm, body.query, documents, body.top_n))
    scores = await model.async_llm.run_task(score_texts(llm, pairs))
    results = [
        RerankReplyItem(
            each.index, each.score, RerankDocument(documents[each.index]) if body.return_documents else None
        )
        for each in sort_by_score(scores, body.top_n, normalize=body.normalize)
    ]
    num_tokens = sum(len(pair.tokens) for pair in pairs)
    return RerankReply(f"rerank-{uuid4().hex}", model.name, results, EmbeddingUsage(num_tokens, num_tokens))


ENDPOINTS: list[Endpoint] = [
    Endpoint("POST", path, rerank, body=RerankRequest, reply=RerankReply) for path in ("/v1/rerank", "/rerank")
]
