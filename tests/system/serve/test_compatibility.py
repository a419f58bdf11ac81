"""Paths, fields and options that clients of llama-server and vLLM rely on."""

import asyncio
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from hf_folders import write_model
from sporelm.errors import RequestError
from sporelm.serve.app import UNVERSIONED
from sporelm.serve.http.api_keys import ApiKey
from sporelm.serve.serve_config import ModelSpec, ServeConfig
from sporelm.serve.server_state import Server
from system.serve.running_server import Running
from tiny_models import WIDE

Serve = Callable[..., Running]
ASK = [{"role": "user", "content": "Once upon a time"}]
SHORT = {"messages": ASK, "max_tokens": 3, "temperature": 0}
BOS, BEGIN = 1, "<|start_story|>"


@pytest.fixture(scope="module")
def http(served: Running) -> httpx.Client:
    return served.client()


@pytest.fixture(scope="module")
def unversioned(served: Running) -> Iterator[openai.OpenAI]:
    """The official client with an address that lacks `/v1`."""
    with openai.OpenAI(base_url=served.url, api_key="none", max_retries=0) as client:
        yield client


def error(answer: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()["error"]
    return found


# ---- paths


def test_an_address_without_v1_serves_all_of_openais_client(unversioned: openai.OpenAI) -> None:
    asked: Any = {"max_tokens": 2, "temperature": 0, "model": "story"}
    assert unversioned.chat.completions.create(messages=ASK, **asked).choices[0].message.content  # type: ignore[arg-type]
    assert list(unversioned.chat.completions.create(messages=ASK, stream=True, **asked))  # type: ignore[arg-type]
    assert unversioned.completions.create(prompt="Once", **asked).choices[0].text
    assert unversioned.embeddings.create(input="Once", model="story").data[0].embedding
    assert unversioned.responses.create(input="Once", model="story", max_output_tokens=2).output_text
    assert [each.id for each in unversioned.models.list()] == ["story"]
    assert unversioned.models.retrieve("story").id == "story"


def test_the_second_paths_are_described(http: httpx.Client) -> None:
    paths = http.get("/openapi.json").json()["paths"]
    for path in UNVERSIONED:
        versioned = paths[path.replace(":path", "")]
        alias = paths[path.removeprefix("/v1").replace(":path", "")]
        assert alias.keys() == versioned.keys()
        for method, told in alias.items():
            assert told["description"].startswith(f"The same as {path}.")
            assert told["operationId"] != versioned[method]["operationId"]
            assert told.get("requestBody") == versioned[method].get("requestBody")


def test_v1_health_needs_no_key(serve: Serve) -> None:
    closed = serve(keys=(ApiKey.parse("anna:secret-of-anna"),)).client()
    assert closed.get("/v1/health").json() == closed.get("/health").json() == {"status": "ok", "troubles": []}
    assert closed.get("/models").status_code == 401


# ---- /tokenize and /detokenize


def test_content_is_tokenized_as_llama_server_does(http: httpx.Client) -> None:
    plain = http.post("/tokenize", json={"content": "The dog"}).json()
    assert plain == {"tokens": plain["tokens"]}
    assert BOS not in plain["tokens"]
    special = http.post("/tokenize", json={"content": "The dog", "add_special": True}).json()
    assert special == {"tokens": [BOS, *plain["tokens"]]}
    assert http.post("/tokenize", json={"content": ["The dog", 5, 6]}).json()["tokens"] == [*plain["tokens"], 5, 6]
    mixed = http.post("/tokenize", json={"content": [5, "The dog"], "add_special": True}).json()["tokens"]
    assert mixed == [5, *plain["tokens"]]
    assert http.post("/tokenize", json={}).json() == {"tokens": []}


def test_control_tokens_in_content_are_parsed_unless_told_otherwise(http: httpx.Client) -> None:
    assert http.post("/tokenize", json={"content": BEGIN}).json()["tokens"] == [BOS]
    letters = http.post("/tokenize", json={"content": BEGIN, "parse_special": False}).json()["tokens"]
    assert letters
    assert BOS not in letters


def test_pieces_are_texts_or_the_bytes_of_part_of_a_character(serve: Serve, tmp_path: Path) -> None:
    bytewise = write_model(tmp_path / "bytewise", replace(WIDE, config=WIDE.config | {"vocab_size": 303}))
    http = serve(models=(ModelSpec("bytewise", str(bytewise)),)).client()
    asked = {"content": "The á 媽 🤗", "with_pieces": True}
    tokens = http.post("/tokenize", json=asked).json()["tokens"]
    ids = http.post("/tokenize", json=asked | {"with_pieces": False}).json()["tokens"]
    assert [each["id"] for each in tokens] == ids
    pieces = [each["piece"] for each in tokens]
    assert any(isinstance(piece, str) for piece in pieces)
    assert [0xC3] in pieces  # the first byte of á
    for piece in pieces:
        if isinstance(piece, list):
            with pytest.raises(UnicodeDecodeError):
                bytes(piece).decode()
    joined = b"".join(bytes(piece) if isinstance(piece, list) else piece.encode() for piece in pieces)
    assert joined.decode() == "The á 媽 🤗"


def test_a_prompt_is_tokenized_as_vllm_does(http: httpx.Client) -> None:
    told = http.post("/tokenize", json={"prompt": "The dog", "return_token_strs": True}).json()
    assert told["tokens"][0] == BOS
    assert told["count"] == len(told["tokens"]) == len(told["token_strs"])
    assert told["max_model_len"] > 0


def test_a_text_is_given_once(http: httpx.Client) -> None:
    told = error(http.post("/tokenize", json={"prompt": "a", "content": "b"}))
    assert told["message"] == "content and prompt are given together: give one of them"
    assert "outside the vocabulary" in error(http.post("/tokenize", json={"content": [1 << 40]}))["message"]


def test_detokenize_answers_both_dialects(http: httpx.Client) -> None:
    ids = http.post("/tokenize", json={"content": "The dog"}).json()["tokens"]
    assert http.post("/detokenize", json={"tokens": ids}).json() == {"prompt": "The dog", "content": " The dog"}
    assert http.post("/detokenize", json={"tokens": [BOS, *ids]}).json()["content"] == f"{BEGIN} The dog"


# ---- /apply-template


def test_a_template_is_applied_up_to_the_end_of_a_message_that_goes_on(http: httpx.Client) -> None:
    begun = [*ASK, {"role": "assistant", "content": "there was"}]
    assert http.post("/apply-template", json={"messages": begun}).json()["prompt"].endswith("there was ")
    asked = {"messages": begun, "continue_final_message": True}
    assert http.post("/apply-template", json=asked).json()["prompt"].endswith("there was")
    assert http.post("/apply-template", json=asked | {"add_generation_prompt": False}).json()["prompt"].endswith("was")
    both = error(http.post("/apply-template", json=asked | {"add_generation_prompt": True}))
    assert "add_generation_prompt and continue_final_message are both true" in both["message"]
    assert (
        "needs a last message of the assistant"
        in error(http.post("/apply-template", json={"messages": ASK, "continue_final_message": True}))["message"]
    )


# ---- errors and replies


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "dog " * 3000}]}),
        ("/v1/completions", {"prompt": [5] * 3000}),
        ("/v1/embeddings", {"input": [5] * 3000}),
        ("/v1/responses", {"input": "dog " * 3000}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "dog " * 3000}], "max_tokens": 1}),
    ],
)
def test_the_numbers_of_an_overflow_are_fields(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    told = error(http.post(path, json=body))
    context = http.get("/v1/models/story").json()["max_context"]
    assert told["n_ctx"] == context
    assert told["n_prompt_tokens"] >= 3000
    assert f"{told['n_prompt_tokens']} tokens" in told["message"]


def test_the_numbers_of_an_overflow_stand_beside_ollamas_error(http: httpx.Client) -> None:
    body = {"model": "story", "messages": [{"role": "user", "content": "dog " * 3000}], "stream": False}
    told = http.post("/api/chat", json=body).json()
    assert told["n_ctx"] == http.get("/v1/models/story").json()["max_context"]
    assert told["n_prompt_tokens"] >= 3000
    assert f"{told['n_prompt_tokens']} tokens" in told["error"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/api/generate"])
@pytest.mark.parametrize("stop", ["", [""], ["a", ""]])
def test_an_empty_stop_is_refused(http: httpx.Client, path: str, stop: str | list[str]) -> None:
    body: dict[str, Any] = {"model": "story", "prompt": "Once"}
    if "chat" in path:
        body = {"model": "story", "messages": ASK}
    body |= {"options": {"stop": stop}} if path.startswith("/api") else {"stop": stop}
    reply = http.post(path, json=body)
    assert reply.status_code == 400
    assert "stop" in reply.text


def test_openais_client_shows_the_numbers_of_an_overflow(unversioned: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        unversioned.completions.create(prompt=[5] * 3000, model="story")
    assert isinstance(caught.value.body, dict)
    assert (caught.value.code, caught.value.body["n_prompt_tokens"]) == ("context_length_exceeded", 3000)


def test_replies_and_chunks_have_one_fingerprint(unversioned: openai.OpenAI, http: httpx.Client) -> None:
    asked: Any = {"max_tokens": 2, "temperature": 0, "model": "story"}
    whole = unversioned.chat.completions.create(messages=ASK, **asked)  # type: ignore[arg-type]
    chunks = unversioned.chat.completions.create(messages=ASK, stream=True, **asked)  # type: ignore[arg-type]
    text = unversioned.completions.create(prompt="Once", **asked)
    pieces = unversioned.completions.create(prompt="Once", stream=True, **asked)
    echoed = http.post("/v1/completions", json={"prompt": "Once", "echo": True, "max_tokens": 0}).json()
    found = {each.system_fingerprint for each in (whole, text, *chunks, *pieces)} | {echoed["system_fingerprint"]}
    assert len(found) == 1
    assert next(iter(found) or "").startswith("fp_")  # type: ignore[union-attr]


def test_the_fingerprint_tells_kv_types_apart(serve: Serve, http: httpx.Client) -> None:
    other = serve(engine={"threads": 1, "kv": "f16"}).client()
    first, second = (client.post("/v1/chat/completions", json=SHORT).json() for client in (http, other))
    assert first["system_fingerprint"] != second["system_fingerprint"]


# ---- --any-model-name


def test_any_model_name_is_served_by_the_first_model(serve: Serve, chatty: Path, http: httpx.Client) -> None:
    specs = (ModelSpec("first", str(chatty)), ModelSpec("second", str(chatty)))
    client = serve(models=specs, any_model_name=True).client()
    for path, body in (("/v1/chat/completions", SHORT), ("/v1/messages", {"messages": ASK, "max_tokens": 2})):
        assert client.post(path, json=body | {"model": "gpt-4o"}).json()["model"] == "first"
        assert client.post(path, json=body | {"model": "second"}).json()["model"] == "second"
        assert http.post(path, json=body | {"model": "gpt-4o"}).status_code == 404
    pulled = client.post("/api/pull", json={"model": "gpt-4o", "stream": False})
    assert pulled.status_code == 404  # nothing would be fetched: no success is claimed
    assert "only these can be pulled" in pulled.json()["error"]


# ---- GBNF


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_gbnf_grammar_holds_the_answer(http: httpx.Client, path: str) -> None:
    asked = {"messages": ASK} if "chat" in path else {"prompt": "Once"}
    asked |= {"max_tokens": 20, "temperature": 0, "grammar": 'root ::= "(" root ")" | [a-c]{2} "b"'}
    (choice,) = http.post(path, json=asked).json()["choices"]
    text = choice["text"] if "text" in choice else choice["message"]["content"]
    assert re.fullmatch(r"\(*([a-c]{2}b\)*)?", text)
    assert "line 1: undefined rule 'x'" in error(http.post(path, json=asked | {"grammar": "root ::= x"}))["message"]
    both = asked | {"response_format": {"type": "json_object"}}
    assert "grammar and response_format are given together" in error(http.post(path, json=both))["message"]
    free = http.post(path, json=asked | {"grammar": ""}).json()["choices"]  # what llama.cpp's clients send for none
    plain = http.post(path, json={name: value for name, value in asked.items() if name != "grammar"}).json()["choices"]
    assert free == plain
    form = {"type": "gbnf", "gbnf": 'root ::= "yes" | "no"'}
    (short,) = http.post(path, json=asked | {"grammar": None, "response_format": form}).json()["choices"]
    assert (short["text"] if "text" in short else short["message"]["content"]) in ("yes", "no")


# ---- --chat-template


def test_a_chat_template_by_name_is_that_of_every_model(serve: Serve, story: Path) -> None:
    specs = (ModelSpec("mute", str(story)), ModelSpec("second", str(story)))  # it has no template of its own
    client = serve(models=specs, engine={"threads": 1, "chat_template": "chatml"}).client()
    assert [each["chat"] for each in client.get("/v1/models").json()["data"]] == [True, True]
    shown = client.post("/apply-template", json={"messages": ASK, "model": "second"}).json()["prompt"]
    assert shown == f"{BEGIN}<|im_start|>user\nOnce upon a time<|im_end|>\n<|im_start|>assistant\n"
    assert client.post("/v1/chat/completions", json=SHORT).status_code == 200


def test_a_template_that_renders_nothing_is_named(serve: Serve, story: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.jinja").write_text("{% if false %}{% endif %}")
    template = {"threads": 1, "chat_template": str(tmp_path / "empty.jinja")}
    client = serve(models=(ModelSpec("mute", str(story)),), engine=template).client()
    told = error(client.post("/v1/chat/completions", json=SHORT))["message"]
    assert told == "the chat template 'empty.jinja' renders no tokens for these messages: use another chat template"


def test_an_unknown_chat_template_ends_the_server_with_one_line(story: Path) -> None:
    with pytest.raises(RequestError, match="mute cannot be loaded: the chat template is neither a file nor"):
        asyncio.run(Server(ServeConfig((ModelSpec("mute", str(story)),), engine={"chat_template": "chatlm"})).open())
