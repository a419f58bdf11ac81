"""Semantic errors of requests: a 400 that names the parameter at fault and its allowed values."""

from typing import Any

import httpx
import pytest

from system.serve.running_server import Running

MESSAGES = [{"role": "user", "content": "Lily"}]
CHAT = {"messages": MESSAGES, "max_tokens": 1}
RESPONSE = {"input": "Lily", "max_output_tokens": 1}
OLLAMA = {"messages": MESSAGES, "stream": False, "options": {"num_predict": 1}}
ID = "c" * 32


@pytest.fixture(scope="module")
def client(served: Running) -> httpx.Client:
    return served.client()


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", CHAT | {"reasoning_effort": "huge"}, "reasoning_effort"),
        ("/v1/responses", RESPONSE | {"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ("/v1/messages", CHAT | {"output_config": {"effort": "huge"}}, "output_config.effort"),
        ("/v1/messages/count_tokens", {"messages": MESSAGES, "output_config": {"effort": "huge"}}, None),
    ],
)
def test_an_unknown_reasoning_effort_is_refused(
    client: httpx.Client, path: str, body: dict[str, Any], param: str | None
) -> None:
    reply = client.post(path, json=body)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert "effort is 'huge': it must be one of none, minimal, low, medium, high, xhigh, max" in error["message"]
    if "anthropic" not in path and "param" in error:
        assert error["param"] == param


@pytest.mark.parametrize("effort", ["none", "minimal", "low", "medium", "high", "xhigh", "max"])
def test_known_reasoning_efforts_are_accepted(client: httpx.Client, effort: str) -> None:
    assert client.post("/v1/chat/completions", json=CHAT | {"reasoning_effort": effort}).status_code == 200
    assert client.post("/v1/responses", json=RESPONSE | {"reasoning": {"effort": effort}}).status_code == 200


def test_templates_may_take_other_efforts(client: httpx.Client) -> None:
    body = CHAT | {"chat_template_kwargs": {"reasoning_effort": "no_think"}}
    assert client.post("/v1/chat/completions", json=body).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", CHAT | {"top_logprobs": 2}, "top_logprobs"),
        ("/v1/chat/completions", CHAT | {"n": 3, "seed": 1 << 70}, "seed"),
        ("/v1/chat/completions", CHAT | {"min_tokens": 9}, "min_tokens"),
        ("/v1/chat/completions", CHAT | {"logit_bias": {"x": 1}}, "logit_bias"),
        ("/v1/chat/completions", CHAT | {"stop_token_ids": [1 << 20]}, "stop_token_ids"),
        ("/v1/chat/completions", CHAT | {"stop": ["x" * 5000]}, "stop"),
        ("/v1/chat/completions", CHAT | {"response_format": {"type": "odd"}}, "response_format"),
        ("/v1/chat/completions", CHAT | {"chat_template_kwargs": {"odd": 1}}, "chat_template_kwargs"),
        ("/v1/chat/completions", CHAT | {"continue_final_message": True}, "continue_final_message"),
        ("/v1/chat/completions", CHAT | {"functions": []}, "functions"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Lily " * 900}]}, "messages"),
        ("/v1/completions", {"prompt": [1, "x"]}, "prompt"),
        ("/v1/completions", {"prompt": "Lily " * 900}, "prompt"),
        ("/v1/completions", {"prompt": "Lily", "suffix": "ran"}, "suffix"),
        ("/v1/completions", {"prompt": "Lily", "max_tokens": 0}, "max_tokens"),
        ("/v1/completions", {"prompt": "Lily", "n": 2, "best_of": 1}, "best_of"),
        ("/v1/embeddings", {"input": []}, "input"),
        ("/v1/embeddings", {"input": "Lily", "dimensions": 3}, "dimensions"),
        ("/v1/responses", RESPONSE | {"previous_response_id": "x"}, "previous_response_id"),
        ("/v1/responses", RESPONSE | {"truncation": "auto"}, "truncation"),
        ("/v1/responses", {"input": [{"role": "odd", "content": "x"}]}, "input[0].role"),
    ],
)
def test_a_semantic_error_names_its_parameter(
    client: httpx.Client, path: str, body: dict[str, Any], param: str
) -> None:
    reply = client.post(path, json=body)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param, reply.text


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        ({"temperature": "hot"}, "settings.temperature"),
        ({"temperature": True}, "settings.temperature"),
        ({"temperature": -1}, "settings.temperature"),
        ({"top_k": 0.5}, "settings.top_k"),
        ({"stop": 7}, "settings.stop[0]"),
        ({"max_tokens": 0}, "settings.max_tokens"),
        ({"temperatur": 1}, "settings"),
        ([], "settings"),
    ],
)
def test_conversations_refuse_settings_with_which_no_answer_could_be_generated(
    serve: Any, tmp_path: Any, settings: Any, param: str
) -> None:
    client = serve(session_dir=tmp_path).client()
    path = f"/api/ui/conversations/{ID}"
    stored = {"temperature": 0.5, "top_k": 40, "stop": "END", "seed": None}
    assert client.post("/api/ui/conversations", json={"id": ID, "settings": stored}).status_code == 200
    reply = client.patch(path, json={"version": 1, "settings": settings})
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_value")
    assert reply.json()["error"]["param"] == param
    assert client.get(path).json()["settings"] == stored
    assert client.post("/api/ui/conversations", json={"settings": settings}).status_code == 400
    changed = client.patch(path, json={"version": 1, "settings": {"temperature": 1, "max_tokens": 9}})
    assert changed.status_code == 200
