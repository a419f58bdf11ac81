"""Encoders served: embeddings, rerankers, and what they refuse."""

import base64
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from encoder_files import write_encoder
from families import ENCODERS
from sporelm import LLM
from sporelm.api import engine_loader
from sporelm.api.document_ranking import encode_pairs
from sporelm.checkpoints import open_model
from sporelm.errors import ModelNotFound
from sporelm.serve.routes import rerank
from sporelm.serve.serve_config import ModelSpec, ServeConfig
from system.serve.running_server import Running, run_server, server_options

CASES = {case.name: case for case in ENCODERS}
TEXTS = ["a dog", "some other words"]
DOCUMENTS = ["a dog it is", "no", "some other text"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("served")
    write_encoder(root / "reader", CASES["bert"])
    write_encoder(root / "ranker", CASES["xlm-roberta-scores"])
    return root


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    models = tuple(ModelSpec(name, str(folder / name)) for name in ("reader", "ranker"))
    # Options for all models are valid for models that do not use them.
    engine = {"threads": 1, "kv": "q8_0", "speculate": "ngram"}
    running, stop = run_server(ServeConfig(models=models, **server_options(engine=engine, session_dir=folder / "kept")))
    yield running
    stop()


@pytest.fixture
def client(server: Running) -> httpx.Client:
    return server.client()


def test_embeddings(client: httpx.Client, folder: Path) -> None:
    with LLM(folder / "reader", threads=1) as llm:
        expected = llm.embed(TEXTS)
    made = client.post("/v1/embeddings", json={"model": "reader", "input": TEXTS}).json()
    assert np.array_equal(np.array([each["embedding"] for each in made["data"]], np.float32), expected)
    assert made["usage"]["prompt_tokens"] > 4
    packed = {"model": "reader", "input": TEXTS[0], "encoding_format": "base64", "dimensions": 48}
    (each,) = client.post("/v1/embeddings", json=packed).json()["data"]
    assert np.array_equal(np.frombuffer(base64.b64decode(each["embedding"]), "<f4"), expected[0])
    ollama = client.post("/api/embed", json={"model": "reader", "input": TEXTS}).json()
    assert np.array_equal(np.array(ollama["embeddings"], np.float32), expected)
    cut = client.post("/v1/embeddings", json=packed | {"dimensions": 8})
    assert cut.status_code == 400
    assert "which are not truncated" in cut.json()["error"]["message"]
    long = {"model": "reader", "input": "a " * 300}
    assert client.post("/v1/embeddings", json=long).status_code == 400
    short = client.post("/v1/embeddings", json=long | {"truncate": True}).json()
    assert short["usage"]["prompt_tokens"] == 96


def test_a_model_is_looked_at_once_to_see_what_it_is_and_to_load_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Path] = []

    def watched(path: Path) -> Any:
        opened.append(path)
        return open_model(path)

    monkeypatch.setattr(engine_loader, "open_model", watched)
    made: dict[str, Any] = {"speculate": "draft", "draft_model": "no/such/file.gguf", "max_context": 10_000}
    with LLM(folder / "reader", any_kind=True, **made) as llm:
        assert llm.max_context == 96  # its own
    assert opened == [folder / "reader"]
    with pytest.raises(ModelNotFound, match="no/such/file"):
        LLM(folder / "reader", **made)


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank"])
def test_documents_are_ranked(client: httpx.Client, path: str, folder: Path) -> None:
    body = {
        "model": "ranker",
        "query": "is it a dog",
        "documents": [DOCUMENTS[0], {"text": DOCUMENTS[1]}, DOCUMENTS[2]],
    }
    with LLM(folder / "ranker", threads=1) as llm:
        expected = llm.rerank("is it a dog", DOCUMENTS)
        raw = llm.rerank("is it a dog", DOCUMENTS, normalize=False)
    made = client.post(path, json=body).json()
    assert [(each["index"], each["relevance_score"]) for each in made["results"]] == [
        (each.index, each.score) for each in expected
    ]
    assert made["model"] == "ranker"
    assert made["usage"]["total_tokens"] > 12
    assert "document" not in made["results"][0]
    few = client.post(path, json=body | {"top_n": 2, "return_documents": True, "normalize": False}).json()["results"]
    assert [(each["index"], each["relevance_score"]) for each in few] == [(each.index, each.score) for each in raw[:2]]
    assert [each["document"]["text"] for each in few] == [DOCUMENTS[each.index] for each in raw[:2]]


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/rerank", {"model": "reader", "query": "a", "documents": ["b"]}, "is not a reranker"),
        ("/v1/rerank", {"model": "ranker", "query": "a", "documents": []}, "at least one text"),
        ("/v1/rerank", {"model": "ranker", "query": "a", "documents": ["b"] * 9999}, "max_prompts"),
        ("/v1/rerank", {"model": "ranker", "query": "a", "documents": ["b"], "top_n": 0}, "top_n"),
        ("/v1/rerank", {"model": "ranker", "query": "a", "documents": ["b " * 300]}, "the context holds 94"),
        ("/v1/rerank", {"model": "ranker", "query": "a", "documents": ["b"], "max_chunks_per_doc": 2}, "max_chunks"),
        ("/v1/embeddings", {"model": "reader", "input": "a " * 300}, "the context holds 96"),
        ("/v1/completions", {"model": "reader", "prompt": "a"}, "is an encoder, which continues no text"),
        ("/v1/chat/completions", {"model": "reader", "messages": [{"role": "user", "content": "a"}]}, "is an encoder"),
        ("/v1/responses", {"model": "ranker", "input": "a"}, "ask it to rerank"),
    ],
)
def test_what_is_refused(client: httpx.Client, path: str, body: dict[str, object], message: str) -> None:
    found = client.post(path, json=body)
    assert found.status_code == 400
    assert message in found.json()["error"]["message"]


@pytest.mark.parametrize(("query", "count", "beside"), [("a " * 40, 3, False), ("a " * 40, 26, True), ("a", 40, True)])
def test_a_query_is_read_with_many_documents_beside_the_event_loop(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch, query: str, count: int, beside: bool
) -> None:
    """However short the body is."""
    threads = []

    def watched(*given: Any) -> Any:
        threads.append(threading.current_thread().name)
        return encode_pairs(*given)

    monkeypatch.setattr(rerank, "encode_pairs", watched)
    body = {"model": "ranker", "query": query, "documents": ["b"] * count}
    assert len(client.post("/v1/rerank", json=body).json()["results"]) == count
    assert [name.startswith("asyncio_") for name in threads] == [beside]


def test_what_it_is_told_to_be(client: httpx.Client) -> None:
    assert client.post("/api/show", json={"model": "reader"}).json()["capabilities"] == ["embedding"]
    assert "/v1/rerank" in client.get("/openapi.json").json()["paths"]
    assert client.post("/api/generate", json={"model": "reader", "prompt": "a"}).status_code == 400
    assert client.get("/metrics").status_code == 200
    assert client.get("/ready").status_code == 200
