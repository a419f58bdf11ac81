"""One table of values through three interfaces: what Python, the command line and the server accept is the same."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from sporelm import LLM, SamplingParams
from sporelm.cli import main, sampling_options
from sporelm.errors import RequestError
from system.serve.running_server import Running

ASK = [{"role": "user", "content": "Once upon a time"}]

# field, value, what `SamplingParams` makes of it, or the reason for which it is refused
SAME: list[tuple[str, Any, Any]] = [
    ("top_k", -1, 0),
    ("top_k", 0, 0),
    ("top_k", 1, 1),
    ("top_k", (1 << 31) - 1, (1 << 31) - 1),
    ("top_k", -2, "top_k"),
    ("top_k", 1 << 31, "top_k"),
    ("top_k", 2.5, "top_k"),
    ("seed", 0, 0),
    ("seed", 7, 7),
    ("seed", -1, None),
    ("seed", -2, (1 << 64) - 2),
    ("seed", -(1 << 63), 1 << 63),
    ("seed", (1 << 64) - 1, (1 << 64) - 1),
    ("seed", 1 << 64, "seed"),
    ("seed", -(1 << 63) - 1, "seed"),
    ("seed", 2.5, "seed"),
    ("top_p", 0.5, 0.5),
    ("top_p", 1, 1.0),
    ("top_p", 0, "top_p"),
    ("top_p", 1.5, "top_p"),
    ("min_p", 0, 0.0),
    ("min_p", 1, 1.0),
    ("min_p", -0.5, "min_p"),
    ("typical_p", 0, "typical_p"),
    ("temperature", 0, 0.0),
    ("temperature", 100, 100.0),
    ("temperature", -1, "temperature"),
    ("temperature", 101, "temperature"),
    ("repetition_penalty", 0.01, 0.01),
    ("repetition_penalty", 0, "repetition_penalty"),
    ("presence_penalty", -100, -100.0),
    ("presence_penalty", 101, "presence_penalty"),
    ("frequency_penalty", 100, 100.0),
    ("frequency_penalty", -101, "frequency_penalty"),
    ("xtc_probability", 1, 1.0),
    ("xtc_probability", 2, "xtc_probability"),
    ("dry_multiplier", 100, 100.0),
    ("dry_multiplier", -1, "dry_multiplier"),
    ("dry_base", 0.5, "dry_base"),
    ("dry_allowed_length", 0, "dry_allowed_length"),
    ("dry_range", -1, "dry_range"),
    ("mirostat", 3, "mirostat"),
    ("min_tokens", -1, "min_tokens"),
    ("max_tokens", 1, 1),
    ("max_tokens", 0, "max_tokens"),
    ("max_tokens", -1, "max_tokens"),
    ("max_tokens", 1 << 31, "max_tokens"),
]
# role, and the reason for which it is refused
ROLES: list[tuple[str, str]] = [
    ("user", ""),
    ("system", ""),
    ("assistant", ""),
    ("developer", ""),
    ("", "message 0: role is ''"),
    ("function", "message 0: deprecated function calling is not supported"),
]
OPTIONS = {"temperature": "--temp"}


@pytest.fixture(scope="module")
def llm(served: Running) -> LLM:
    return served.server.models.loaded["story"].llm


@pytest.fixture(scope="module")
def http(served: Running) -> httpx.Client:
    return served.client()


@pytest.fixture
def requested_params(monkeypatch: pytest.MonkeyPatch) -> list[SamplingParams]:
    """The sampling parameters that the server passed to its engine."""
    found: list[SamplingParams] = []
    answers: Callable[..., Any] = LLM.prepare_generations

    def noted(self: LLM, ids: list[int], params: SamplingParams, **more: Any) -> Any:
        found.append(params)
        return answers(self, ids, params, **more)

    monkeypatch.setattr(LLM, "prepare_generations", noted)
    return found


def named(field: str, value: Any) -> str:
    return f"{field}={value}"


@pytest.mark.parametrize(("field", "value", "result"), SAME, ids=[named(*row[:2]) for row in SAME])
def test_python_the_command_line_and_the_server_take_the_same_values(
    http: httpx.Client,
    requested_params: list[SamplingParams],
    capsys: pytest.CaptureFixture[str],
    field: str,
    value: Any,
    result: Any,
) -> None:
    option = OPTIONS.get(field, f"--{field.replace('_', '-')}")
    words = ["-p", "x", option, str(value)]
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": ASK, "max_tokens": 1, field: value},
        "/v1/completions": {"prompt": "Once", "max_tokens": 1, field: value},
    }
    if field == "max_tokens" and value == 0:
        del bodies["/v1/completions"]  # asks for the echo of the prompt alone
    if isinstance(result, str):
        with pytest.raises(RequestError, match=f"{result} is "):
            SamplingParams(**{field: value})
        assert _exit_code(["run", *words]) == 2
        assert option in (told := capsys.readouterr().err) or result in told
        for path, body in bodies.items():
            refused = http.post(path, json=body)
            assert refused.status_code == 400, path
            assert result in (refused.json()["error"]["param"] or refused.json()["error"]["message"])
        return
    assert getattr(SamplingParams(**{field: value}), field) == result
    parsed = main.load_command("run").make_parser().parse_args(words)
    assert getattr(sampling_options.parse_sampling(parsed), field) == result
    for path, body in bodies.items():
        answer = http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        assert getattr(requested_params[-1], field) == result, path


def _exit_code(words: list[str]) -> int:
    try:
        return main.main(words)
    except SystemExit as end:
        return int(end.code or 0)


@pytest.mark.parametrize(("role", "refused"), ROLES)
def test_python_and_the_server_take_the_same_roles(llm: LLM, http: httpx.Client, role: str, refused: str) -> None:
    messages = [{"role": role, "content": "Lily"}, *ASK]
    bodies = {
        "/v1/chat/completions": {"messages": messages, "max_tokens": 1},
        "/apply-template": {"messages": messages},
        "/api/chat": {"messages": messages, "stream": False, "options": {"num_predict": 1}},
    }
    told = {path: http.post(path, json=body) for path, body in bodies.items()}
    for path, answer in told.items():
        assert answer.status_code == (400 if refused else 200), path
        assert refused in answer.text
    if refused:
        with pytest.raises(RequestError, match=refused):
            llm.chat(messages, SamplingParams(max_tokens=1))
    else:
        assert llm.chat(messages, SamplingParams(max_tokens=1)).token_ids
