"""`suffix`: a model that was made for it fills the gap, another one says that it cannot."""

from collections.abc import Iterator
from dataclasses import replace

import httpx
import openai
import pytest

from hf_folders import FLAGS, tokenizer_json, write_model, write_tokenizer
from sporelm.serve.serve_config import ModelSpec, ServeConfig
from system.serve.running_server import Running, run_server, server_options
from tiny_models import WIDE

MARKS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")


@pytest.fixture(scope="module")
def filler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A tiny model that knows the marks."""
    folder = write_model(
        tmp_path_factory.mktemp("filler") / "filler", replace(WIDE, config=WIDE.config | {"vocab_size": 303})
    )
    spec = tokenizer_json(300)
    for token, mark in enumerate(MARKS, 300):
        spec["model"]["vocab"][mark] = token
        spec["added_tokens"].append({"id": token, "content": mark, "special": True} | FLAGS)
    write_tokenizer(folder, spec)
    running, stop = run_server(ServeConfig(**server_options(models=(ModelSpec("filler", str(folder)),))))
    yield running
    stop()


def test_a_gap_is_filled(filler: Running) -> None:
    with openai.OpenAI(base_url=f"{filler.url}/v1", api_key="none", max_retries=0) as client:
        asked = {"model": "filler", "max_tokens": 6, "temperature": 0}
        made = client.completions.create(prompt="def f(", suffix="): return 1", **asked)
        told = "<|fim_prefix|>def f(<|fim_suffix|>): return 1<|fim_middle|>"
        plain = client.completions.create(prompt=told, extra_body={"stop_token_ids": [300, 301, 302]}, **asked)
        assert made.choices[0].text == plain.choices[0].text
        assert made.usage is not None
        assert plain.usage is not None
        assert made.usage.prompt_tokens == plain.usage.prompt_tokens
        several = client.completions.create(prompt=["def f(", "def g("], suffix="): return 1", **asked)
        assert several.choices[0].text == made.choices[0].text
        streamed = client.completions.create(prompt="def f(", suffix="): return 1", stream=True, **asked)
        assert "".join(chunk.choices[0].text for chunk in streamed) == made.choices[0].text
        with pytest.raises(openai.BadRequestError, match="echo and suffix"):
            client.completions.create(prompt="def f(", suffix=")", echo=True, **asked)


def test_ollama_fills_gaps_too(filler: Running) -> None:
    client = filler.client()
    options = {"temperature": 0, "num_predict": 6}
    body = {"prompt": "def f(", "suffix": "): return 1", "options": options, "stream": False}
    made = client.post("/api/generate", json=body).json()
    told = "<|fim_prefix|>def f(<|fim_suffix|>): return 1<|fim_middle|>"
    plain = client.post("/api/generate", json={"prompt": told, "raw": True, "options": options, "stream": False}).json()
    assert made["response"] == plain["response"]
    assert "context" not in made
    assert "insert" in client.post("/api/show", json={"model": "filler"}).json()["capabilities"]
    assert client.post("/api/generate", json=body | {"system": "x"}).status_code == 400


def test_a_model_that_cannot_says_so(served: Running) -> None:
    client: httpx.Client = served.client()
    for path, body in (
        ("/v1/completions", {"prompt": "Lily", "suffix": "Tom"}),
        ("/v1/completions", {"prompt": "Lily", "suffix": "Tom", "stream": True}),
        ("/api/generate", {"prompt": "Lily", "suffix": "Tom"}),
    ):
        answer = client.post(path, json=body)
        assert answer.status_code == 400
        assert "story has no tokens for filling a gap" in answer.text
    assert client.post("/v1/completions", json={"prompt": "Lily", "suffix": "", "max_tokens": 1}).status_code == 200
