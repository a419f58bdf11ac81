"""The official client of Ollama against a running server."""

import ollama
import pytest

from system.serve.conftest import Running

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
    shown = client.show("story")
    assert "completion" in (shown.capabilities or [])
    assert shown.template
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


def test_what_cannot_be_had_is_said(client: ollama.Client) -> None:
    for options, said in (
        ({"num_ctx": 100_000}, "raise --max-context"),
        ({"num_predict": 0}, "num_predict is 0"),
        ({"temperature": -1}, "temperature"),
    ):
        with pytest.raises(ollama.ResponseError, match=said):
            client.chat("story", messages=ASK, options=options)
    with pytest.raises(ollama.ResponseError, match="there is no model 'other'"):
        client.chat("other", messages=ASK)
    with pytest.raises(ollama.ResponseError, match="has images"):
        client.chat("story", messages=[{"role": "user", "content": "x", "images": [b"png"]}])
