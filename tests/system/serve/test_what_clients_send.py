"""The extra fields of popular clients: harmless ones have no effect, unsupported ones are refused."""

import json
from typing import Any

import httpx
import pytest

from system.serve.running_server import Running

MESSAGES = [{"role": "user", "content": "Once upon a time"}]
SHORT = {"messages": MESSAGES, "max_tokens": 2, "temperature": 0}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="module")
def client(served: Running) -> httpx.Client:
    return served.client()


@pytest.fixture(scope="module")
def plain(client: httpx.Client) -> str:
    made = client.post("/v1/chat/completions", json=SHORT).json()
    text: str = made["choices"][0]["message"]["content"]
    return text


def wrap(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


CHAT: dict[str, dict[str, Any]] = {
    "nulls": dict.fromkeys((
        "stop", "seed", "n", "stream", "stream_options", "logit_bias", "response_format", "tools", "tool_choice",
        "user", "top_p", "presence_penalty", "frequency_penalty", "logprobs", "top_logprobs", "functions",
        "parallel_tool_calls", "max_completion_tokens", "metadata", "store", "reasoning_effort", "audio",
    )),
    "LangChain": {"n": 1, "stream_options": {"include_usage": True}, "stream": False, "user": "u"},
    "Open WebUI": {"stream": False, "metadata": {"chat_id": "x"}, "reasoning_effort": "low", "logit_bias": {}},
    "Vercel": {"tools": [], "verbosity": "low", "parallel_tool_calls": True, "stream_options": {"include_usage": True}},
    "LiteLLM": {"store": True, "service_tier": "auto", "safety_identifier": "s", "metadata": {"a": [1]}, "user": "u"},
    "Continue": {"prediction": {"type": "content", "content": "x"}, "tool_choice": "auto", "presence_penalty": 0},
    "OpenAI": {
        "prompt_cache_key": "k", "prompt_cache_retention": "24h", "prompt_cache_options": {"ttl": "30m"},
        "modalities": ["text"], "response_format": {"type": "text"}, "tool_choice": "none",
        "stream_options": {"include_obfuscation": False},
    },
    "llama.cpp": {"cache_prompt": True},
    "Qwen, DeepSeek": {"enable_thinking": False, "thinking": {"type": "disabled"}},
    "parts": {"messages": [{"role": "user", "content": [wrap("Once upon"), wrap(" a time")]}]},
    "bias": {"logit_bias": {"1": 0, "2": 0.0}},
}  # fmt: skip


@pytest.mark.parametrize("name", CHAT)
def test_what_openais_clients_add_changes_nothing(client: httpx.Client, plain: str, name: str) -> None:
    answer = client.post("/v1/chat/completions", json=SHORT | CHAT[name])
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] == plain


OLD = {"functions": [{"name": "look"}]}
REFUSED: list[tuple[dict[str, Any], str]] = [
    (OLD, "give tools"),
    ({"function_call": "auto"}, "give tools and tool_choice"),
    ({"messages": [*MESSAGES, {"role": "function", "name": "look", "content": "x"}]}, "the role 'tool'"),
    ({"audio": {"voice": "x", "format": "wav"}}, "the models of this server do not speak"),
    ({"web_search_options": {}}, "does not search the web"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"guided_json": {}}, "guided_json"),
    ({"tool_choice": "required"}, "there are no tools"),
    ({"tool_choice": "required", "tools": []}, "there are no tools"),
    ({"tool_choice": {"type": "function", "function": {"name": "look"}}}, "not among the tools"),
    ({"tool_choice": {"type": "function", "function": {"name": "other"}}, "tools": [TOOL]}, "not among the tools"),
    ({"tool_choice": {"type": "allowed_tools"}, "tools": [TOOL]}, "needs a mode"),
    ({"tools": [{"type": "web_search"}]}, "is not a function"),
    ({"messages": [{"role": "user", "content": [wrap("x"), {"type": "image_url", "image_url": {}}]}]}, "image URL"),
    ({"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]}, "only 'text'"),
    ({"response_format": {"type": "json_object", "schema": {"type": "nonsense"}}}, "grammar"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "said"), REFUSED, ids=lambda each: str(each)[:50])
def test_unsupported_fields_are_refused_with_a_reason(client: httpx.Client, change: dict[str, Any], said: str) -> None:
    for more in ({}, {"stream": True}):
        answer = client.post("/v1/chat/completions", json=SHORT | change | more)
        assert answer.status_code == 400, answer.text
        assert said in answer.json()["error"]["message"]


def test_every_api_asks_for_the_tools_that_a_choice_wants(client: httpx.Client) -> None:
    for path, body in (
        ("/v1/messages", SHORT | {"tool_choice": {"type": "any"}}),
        ("/v1/messages", SHORT | {"tool_choice": {"type": "tool", "name": "look"}}),
        ("/v1/responses", {"input": "Lily", "tool_choice": "required"}),
        ("/v1/responses", {"input": "Lily", "tool_choice": {"type": "function", "name": "look"}}),
    ):
        answer = client.post(path, json=body)
        assert answer.status_code == 400, answer.text
        assert "tools" in answer.json()["error"]["message"]


def test_several_answers_in_pieces_with_usage(client: httpx.Client) -> None:
    body = SHORT | {"n": 2, "stream": True, "stream_options": {"include_usage": True}}
    with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        text = answer.read().decode()
    assert '"completion_tokens":4' in text
    assert '"completion_tokens_details":{"reasoning_tokens":0}' in text


CODE = {
    "system": [
        {"type": "text", "text": "Be brief", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
        {"type": "text", "text": ".", "citations": None},
    ],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Lily", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm", "signature": "x"}, wrap("Tom")]},
        {"role": "user", "content": "and"},
    ],
    "metadata": {"user_id": "user_1"},
    "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]},
    "output_config": {"effort": "high"},
    "service_tier": "auto", "speed": "standard", "inference_geo": "eu", "cache_control": {"type": "ephemeral"},
    "container": None, "mcp_servers": [], "diagnostics": {}, "betas": ["x"],
}  # fmt: skip
ADAPTIVE = {"type": "adaptive", "display": "summarized"}


@pytest.mark.parametrize("thinking", [None, ADAPTIVE, {"type": "enabled", "budget_tokens": 1024}, {"type": "disabled"}])
def test_what_claude_code_sends(client: httpx.Client, thinking: dict[str, Any] | None) -> None:
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "context-management-2025-06-27,other"}
    body = CODE | {"model": "story", "max_tokens": 2} | ({"thinking": thinking} if thinking else {})
    answer = client.post("/v1/messages?beta=true", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["output_tokens_details"] == {"thinking_tokens": 0}
    counted = {name: value for name, value in body.items() if name not in ("max_tokens", "metadata", "service_tier")}
    assert client.post("/v1/messages/count_tokens?beta=true", json=counted, headers=headers).status_code == 200
    with client.stream("POST", "/v1/messages?beta=true", json=body | {"stream": True}, headers=headers) as streamed:
        assert "message_stop" in streamed.read().decode()
    for name, value in (("mcp_servers", [{"url": "http://x"}]), ("container", "c")):
        refused = client.post("/v1/messages", json=body | {name: value})
        assert refused.status_code == 400
        assert f"{name} is not supported" in refused.text
    form = {"format": {"type": "json_schema", "schema": {"type": "nonsense"}}}
    assert client.post("/v1/messages", json=body | {"output_config": form}).status_code == 400


def test_what_codex_sends(client: httpx.Client) -> None:
    reasoning = {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "x"}
    body = {
        "model": "story", "instructions": "Be brief", "tool_choice": "auto", "parallel_tool_calls": False,
        "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Lily"}]}, reasoning],
        "reasoning": {"effort": "none", "summary": "auto"}, "store": False, "stream": False, "tools": [],
        "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k", "text": {"verbosity": "low"},
        "service_tier": "auto", "client_metadata": {"x": "y"}, "max_output_tokens": 2, "max_tool_calls": 3,
    }  # fmt: skip
    answer = client.post("/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    assert usage["output_tokens_details"] == {"reasoning_tokens": 0}
    details = usage["input_tokens_details"]
    assert details["cache_write_tokens"] + details["cached_tokens"] == usage["input_tokens"]


def test_models_in_the_words_of_both(client: httpx.Client) -> None:
    told = client.get("/v1/models", headers={"anthropic-version": "2023-06-01"}).json()
    assert (told["first_id"], told["last_id"], told["has_more"]) == ("story", "story", False)
    (card,) = told["data"]
    assert (card["type"], card["object"], card["display_name"]) == ("model", "model", "story")
    assert card["created_at"].endswith("Z")


def test_what_was_found_is_counted_in_every_api(client: httpx.Client) -> None:
    messages = [{"role": "user", "content": "Lily and Tom went to the park to play with the ball and the dog. " * 8}]

    def count_cached(stream: bool) -> list[int]:
        chat = {"messages": messages, "max_tokens": 1, "stream": stream, "stream_options": {"include_usage": True}}
        found = [send_for_usage(client, "/v1/chat/completions", chat)["prompt_tokens_details"]["cached_tokens"]]
        responses = {"input": messages, "max_output_tokens": 1, "stream": stream}
        found.append(send_for_usage(client, "/v1/responses", responses)["input_tokens_details"]["cached_tokens"])
        body = {"messages": messages, "max_tokens": 1, "stream": stream}
        return [*found, send_for_usage(client, "/v1/messages", body)["cache_read_input_tokens"]]

    count_cached(stream=False)
    whole, streamed = count_cached(stream=False), count_cached(stream=True)
    assert whole == streamed == [whole[0]] * 3
    assert whole[0] >= 64


def send_for_usage(client: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the usage at the end of an answer, whole or streamed."""
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    usage: dict[str, Any] = {}
    if not body["stream"]:
        usage = answer.json()["usage"]
        return usage
    for line in answer.text.splitlines():
        if line.startswith("data: {"):
            event = json.loads(line[6:])
            usage = event.get("usage") or (event.get("response") or {}).get("usage") or usage
    return usage


BEGUN = [*MESSAGES, {"role": "assistant", "content": ", a little"}]
ENDED = [*MESSAGES, {"role": "assistant", "content": ""}]


def said_to(client: httpx.Client, path: str, body: dict[str, Any]) -> Any:
    """A whole answer."""
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_an_answer_that_was_begun_is_gone_on_with(client: httpx.Client) -> None:
    plain = {"prompt": "Once upon a time , a little", "max_tokens": 8, "temperature": 0}
    rest = said_to(client, "/v1/completions", plain)["choices"][0]["text"]
    short = {"max_tokens": 8, "temperature": 0}
    said = said_to(client, "/v1/messages", {"model": "story", "messages": BEGUN, **short})
    assert said["content"][0]["text"] == rest
    counted = said_to(client, "/v1/messages/count_tokens", {"model": "story", "messages": BEGUN})
    assert counted["input_tokens"] == said["usage"]["input_tokens"] + said["usage"]["cache_read_input_tokens"]
    options = {"temperature": 0, "num_predict": 8}
    said = said_to(client, "/api/chat", {"model": "story", "messages": BEGUN, "stream": False, "options": options})
    assert said["message"]["content"] == rest
    parts = [*MESSAGES, {"role": "assistant", "content": [wrap(", a "), wrap("little")]}]
    for messages in (BEGUN, parts):
        asked = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False, **short}
        assert said_to(client, "/v1/chat/completions", asked)["choices"][0]["message"]["content"] == rest
    new = said_to(client, "/v1/chat/completions", {"messages": BEGUN, **short})["choices"][0]["message"]["content"]
    assert new != rest


@pytest.mark.parametrize("messages", [MESSAGES, ENDED])
def test_nothing_that_was_begun_is_not_gone_on_with(client: httpx.Client, messages: list[dict[str, Any]]) -> None:
    answer = client.post("/v1/chat/completions", json={"messages": messages, "continue_final_message": True})
    assert answer.status_code == 400
    assert "needs a last message of the assistant" in answer.text
    begun = {"messages": BEGUN, "continue_final_message": True, "add_generation_prompt": True}
    assert client.post("/v1/chat/completions", json=begun).status_code == 400
