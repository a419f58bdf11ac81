"""The official client of Ollama against a running server."""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import ollama
import pytest

from imatrix_models import MODEL, VOCAB, vocabulary
from sporelm.serve.http.api_keys import ApiKey
from sporelm.serve.serve_config import ModelSpec
from system.serve.running_server import Running
from tiny_files import write_gguf

ASK = [{"role": "user", "content": "Once upon a time"}]
GREEDY = {"temperature": 0, "num_predict": 12}


@pytest.fixture(scope="module")
def client(served: Running) -> ollama.Client:
    made = ollama.Client(host=served.url, trust_env=False)
    served.clients.callback(made._client.close)
    return made


def test_models(client: ollama.Client) -> None:
    assert [model.model for model in client.list().models] == ["story"]
    assert [model.model for model in client.ps().models] == ["story"]
    (listed,) = client.list().models
    assert (listed.size or 0) > 1000
    assert len(listed.digest or "") == 64
    assert listed.details is not None
    assert (listed.details.format, listed.details.quantization_level) == ("safetensors", "F32")
    (loaded,) = client.ps().models
    assert loaded.context_length == 512
    assert loaded.expires_at is not None
    shown = client.show("story")
    assert shown.capabilities == ["completion", "embedding"]
    assert shown.template
    assert 'stop                           "<|end_story|>"' in (shown.parameters or "")
    assert shown.details == listed.details
    assert shown.modelinfo is not None
    family = shown.modelinfo["general.architecture"]
    assert shown.modelinfo[f"{family}.block_count"] == 2
    assert shown.modelinfo["general.parameter_count"] > 1000
    assert client.pull("story").status == "success"
    assert [each.status for each in client.pull("story", stream=True)][-1] == "success"
    with pytest.raises(ollama.ResponseError, match="only these can be pulled"):
        client.pull("llama3")


def test_a_chat(client: ollama.Client) -> None:
    whole = client.chat("story", messages=ASK, options=GREEDY)
    assert whole.message.content
    assert whole.done
    assert whole.done_reason == "length"
    assert whole.eval_count == 12
    pieces = list(client.chat("story:latest", messages=ASK, options=GREEDY, stream=True))
    assert "".join(piece.message.content or "" for piece in pieces) == whole.message.content
    assert [piece.done for piece in pieces] == [False] * (len(pieces) - 1) + [True]


def test_generate(client: ollama.Client) -> None:
    whole = client.generate("story", "Once upon a time", options=GREEDY)
    assert whole.response
    assert "".join(p.response for p in client.generate("story", "Once upon a time", options=GREEDY, stream=True)) == (
        whole.response
    )
    raw = client.generate("story", "Once upon a time", options=GREEDY, raw=True)
    assert raw.response
    assert client.generate("story").done_reason == "load"


def test_embed(client: ollama.Client) -> None:
    made = client.embed("story", input=["a dog", "a cat"])
    assert len(made.embeddings) == 2
    assert sum(value * value for value in made.embeddings[0]) == pytest.approx(1, abs=1e-5)
    old = client.embeddings("story", prompt="a dog")
    assert old.embedding == pytest.approx(made.embeddings[0])


def test_unsupported_fields_are_refused(client: ollama.Client) -> None:
    for options, said in (
        ({"num_ctx": 100_000}, "the context size of this model on this server"),
        ({"num_ctx": 0}, "num_ctx is 0: it must be from 1"),
        ({"num_predict": 0}, "num_predict is 0"),
        ({"temperature": -1}, "temperature"),
    ):
        with pytest.raises(ollama.ResponseError, match=said):
            client.chat("story", messages=ASK, options=options)
    with pytest.raises(ollama.ResponseError, match="there is no model 'other'"):
        client.chat("other", messages=ASK)
    with pytest.raises(ollama.ResponseError, match="image"):
        client.chat("story", messages=[{"role": "user", "content": "x", "images": [b"png"]}])


def test_what_a_gguf_file_says_is_shown_without_its_place(tmp_path: Path, serve: Callable[..., Running]) -> None:
    gaps = {f"tokenizer.ggml.fim_{name}_token_id": token for name, token in (("pre", 290), ("suf", 291), ("mid", 292))}
    path = write_gguf(tmp_path / "secret-folder.gguf", MODEL, more=vocabulary() | gaps)
    running = serve(models=(ModelSpec("little", str(path)), ModelSpec("gone", str(tmp_path / "gone.gguf"))))
    http = running.client()
    little, gone = http.get("/api/tags").json()["models"]
    assert little["size"] == path.stat().st_size
    assert little["details"]["format"] == "gguf"
    assert (gone["size"], gone["digest"], gone["details"]["format"]) == (0, "", "")
    brief = http.post("/api/show", json={"model": "little"})
    assert "secret-folder" not in brief.text
    info = brief.json()["model_info"]
    assert info["general.architecture"] == "llama"
    assert info["tokenizer.ggml.tokens"] is None
    whole = http.post("/api/show", json={"model": "little", "verbose": True}).json()["model_info"]
    assert len(whole["tokenizer.ggml.tokens"]) == info["llama.vocab_size"] == VOCAB
    assert brief.json()["capabilities"] == ["completion", "embedding", "insert"]
    filled = http.post("/api/generate", json={"prompt": "a", "suffix": "b", "options": {"num_predict": 2}})
    assert filled.status_code == 200


def test_log_probabilities(client: ollama.Client) -> None:
    asked = {"options": {"temperature": 0, "num_predict": 4}, "logprobs": True, "top_logprobs": 2}
    whole = client.chat("story", messages=ASK, **asked)
    assert whole.logprobs is not None
    assert len(whole.logprobs) == 4
    for entry in whole.logprobs:
        assert entry.top_logprobs is not None
        assert entry.top_logprobs[0].logprob == entry.logprob <= 0
    told = [
        entry.token
        for piece in client.chat("story", messages=ASK, stream=True, **asked)
        for entry in piece.logprobs or []
    ]
    assert told == [entry.token for entry in whole.logprobs]
    for raw in (False, True):
        made = client.generate("story", "Once upon a time", raw=raw, **asked)
        assert [entry.token for entry in made.logprobs or []]
        pieces = list(client.generate("story", "Once upon a time", raw=raw, stream=True, **asked))
        assert [entry.token for piece in pieces for entry in piece.logprobs or []] == (
            [entry.token for entry in made.logprobs or []]
        )
    with pytest.raises(ollama.ResponseError, match="without logprobs"):
        client.chat("story", messages=ASK, top_logprobs=2)


def test_a_context_goes_on(client: ollama.Client) -> None:
    first = client.generate("story", "Once upon a time", options=GREEDY)
    assert first.context is not None
    assert len(first.context) == (first.prompt_eval_count or 0) + 12
    more = client.generate("story", "The dog", options=GREEDY, context=first.context)
    assert more.context is not None
    assert list(more.context[: len(first.context)]) == list(first.context)
    assert (more.prompt_eval_count or 0) > len(first.context)
    streamed = list(client.generate("story", "The dog", options=GREEDY, context=first.context, stream=True))
    assert streamed[-1].context == more.context
    assert client.generate("story", "Once", options=GREEDY, raw=True).context is None
    with pytest.raises(ollama.ResponseError, match="raw and context"):
        client.generate("story", "Once", raw=True, context=first.context)
    with pytest.raises(ollama.ResponseError):
        client.generate("story", "Once", context=[1 << 30])


def test_formats(client: ollama.Client) -> None:
    schema = {"enum": ["Lily", "Tom"]}
    with pytest.raises(ollama.ResponseError, match="grammar"):  # the story's tokens know no braces
        client.chat("story", messages=ASK, format="json")
    for wrong in ({"type": "nonsense"}, "xml"):
        with pytest.raises((ollama.ResponseError, ValueError)):
            client.chat("story", messages=ASK, format=wrong)  # type: ignore[arg-type]
    for raw in (False, True):
        assert client.generate("story", "Once", format=schema, raw=raw).response in ('"Lily"', '"Tom"')
    assert client.chat("story", messages=ASK, format=schema).message.content in ('"Lily"', '"Tom"')


def test_thinking_is_for_models_that_can(client: ollama.Client) -> None:
    for think in (True, "high"):
        with pytest.raises(ollama.ResponseError, match="does not support thinking"):
            client.chat("story", messages=ASK, think=think)  # type: ignore[arg-type]
    assert client.chat("story", messages=ASK, think=False, options={"num_predict": 2}).done


@pytest.fixture
def keeper(serve: Callable[..., Running]) -> Iterator[tuple[Running, ollama.Client]]:
    running = serve(idle_seconds=1000.0)
    made = ollama.Client(host=running.url, trust_env=False)
    yield running, made
    made._client.close()


def test_how_long_a_model_stays(keeper: tuple[Running, ollama.Client]) -> None:
    running, client = keeper
    few = {"num_predict": 1}

    def seconds_left() -> float:
        (model,) = client.ps().models
        assert model.expires_at is not None
        return model.expires_at.timestamp() - time.time()

    client.chat("story", messages=ASK, options=few)
    assert 900 < seconds_left() < 1001
    client.chat("story", messages=ASK, options=few, keep_alive="1m30s")
    settle(running, lambda: 80 < seconds_left() < 91)
    client.embed("story", "x", keep_alive=-1)
    settle(running, lambda: seconds_left() > 1e9)
    client.generate("story", "Once", options=few, keep_alive=30)
    settle(running, lambda: 20 < seconds_left() < 31)
    client.generate("story", "Once", options=few, keep_alive=0)
    settle(running, lambda: not client.ps().models)
    assert client.generate("story").done_reason == "load"
    assert client.generate("story", keep_alive="0s").done_reason == "unload"
    settle(running, lambda: not client.ps().models)
    assert client.chat("story", messages=[], keep_alive=0).done_reason == "unload"
    with pytest.raises(ollama.ResponseError, match="keep_alive is 'soon'"):
        client.chat("story", messages=ASK, keep_alive="soon")
    for ask in (client.chat, client.generate, client.embed):
        with pytest.raises(ollama.ResponseError, match="there is no model 'other'") as told:
            ask("other", keep_alive=0)
        assert told.value.status_code == 404


def test_who_may_say_how_long_a_model_stays(serve: Callable[..., Running]) -> None:
    keys = tuple(ApiKey.parse(text) for text in ("ops:secret", "guest:other"))
    running = serve(keys=keys, keep_alive_keys=("ops",))
    guest, ops = (
        ollama.Client(host=running.url, trust_env=False, headers={"authorization": f"Bearer {secret}"})
        for secret in ("other", "secret")
    )
    for made in (guest, ops):
        running.clients.callback(made._client.close)
    asked: list[Callable[[], object]] = [
        lambda: guest.generate("story", keep_alive=0),
        lambda: guest.generate("story", "Once", options={"num_predict": 1}, keep_alive=-1),
        lambda: guest.chat("story", messages=ASK, keep_alive="5m"),
        lambda: guest.embed("story", "x", keep_alive=0),
    ]
    for ask in asked:
        with pytest.raises(ollama.ResponseError, match="keep_alive_keys") as told:
            ask()
        assert told.value.status_code == 403
    assert guest.embed("story", "x").embeddings
    assert [model.model for model in guest.ps().models] == ["story"]
    assert ops.generate("story", keep_alive=0).done_reason == "unload"
    settle(running, lambda: not ops.ps().models)


def settle(running: Running, true: Callable[[], bool]) -> None:
    """Wait until a condition is true: a model's state changes after its answer was sent."""
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_async_client(served: Running) -> None:
    async def ask() -> tuple[str, str]:
        client = ollama.AsyncClient(host=served.url, trust_env=False)
        whole = await client.chat("story", messages=ASK, options=GREEDY)
        pieces = [piece async for piece in await client.chat("story", messages=ASK, options=GREEDY, stream=True)]
        await client._client.aclose()
        return whole.message.content or "", "".join(piece.message.content or "" for piece in pieces)

    whole, streamed = asyncio.run(ask())
    assert whole == streamed
