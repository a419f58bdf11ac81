"""The documented calls of the official clients of OpenAI, Anthropic and Ollama, with a real model."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import anthropic
import ollama
import openai
import pydantic
import pytest

from sporelm.serve.http.api_keys import ApiKey
from sporelm.serve.serve_config import ModelSpec, ServeConfig
from system.serve.running_server import Running, run_server, server_options

pytestmark = pytest.mark.all
ASK = [{"role": "user", "content": "What is 2+2?"}]
ANSWER = "The answer to this classic math problem is 4."
COLD = {"temperature": 0}
PLACE = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "The weather of a city", "parameters": PLACE}},
    {"type": "function", "function": {"name": "clock", "description": "The time in a city", "parameters": PLACE}},
]


class City(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    name: Literal["Paris", "Rome"]
    population: int = pydantic.Field(ge=0, le=99_999_999)


class weather(pydantic.BaseModel):  # the tool's name
    city: str


@pytest.fixture(scope="module")
def smol(smollm2: Path) -> Iterator[Running]:
    """A server of SmolLM2 with a key."""
    keys = (ApiKey.parse("secret"),)
    config = ServeConfig(**server_options(models=(ModelSpec("smol", str(smollm2)),), keys=keys, max_waiting=4))
    running, stop = run_server(config)
    yield running
    stop()


@pytest.fixture(scope="module")
def client(smol: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{smol.url}/v1", api_key="secret", max_retries=0, timeout=120) as made:
        yield made


@pytest.fixture(scope="module")
def claude(smol: Running) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=smol.url, api_key="secret", max_retries=0, timeout=120) as made:
        yield made


@pytest.fixture(scope="module")
def llama(smol: Running) -> Iterator[ollama.Client]:
    made = ollama.Client(host=smol.url, headers={"authorization": "Bearer secret"}, trust_env=False)
    yield made
    made._client.close()


# ---- OpenAI


def test_a_chat(client: openai.OpenAI) -> None:
    made = client.chat.completions.create(model="smol", messages=ASK, max_tokens=20, **COLD)
    assert made.choices[0].message.content == ANSWER
    assert made.choices[0].finish_reason == "stop"
    assert made.usage is not None
    assert made.usage.completion_tokens_details is not None
    assert made.usage.completion_tokens_details.reasoning_tokens == 0
    parts = [{"role": "user", "content": [{"type": "text", "text": ASK[0]["content"]}]}]
    same = client.chat.completions.create(model="smol", messages=parts, max_completion_tokens=20, **COLD)
    assert same.choices[0].message.content == made.choices[0].message.content
    developer = [{"role": "developer", "content": "Answer in one word."}, *ASK]
    assert client.chat.completions.create(model="smol", messages=developer, max_tokens=4).choices


def test_a_stream(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="smol", messages=ASK, max_tokens=20, **COLD)
    chunks = list(
        client.chat.completions.create(
            model="smol", messages=ASK, max_tokens=20, stream=True, stream_options={"include_usage": True}, **COLD
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage.model_copy(
        update={"prompt_tokens_details": chunks[-1].usage.prompt_tokens_details}
    )  # type: ignore[union-attr]
    with client.chat.completions.stream(model="smol", messages=ASK, max_tokens=20, **COLD) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert final.choices[0].message.content == text
    assert "content.delta" in kinds
    assert "content.done" in kinds


def test_the_async_client_many_at_once(smol: Running) -> None:
    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{smol.url}/v1", api_key="secret", max_retries=0) as made:

            async def one(place: str) -> str:
                stream = await made.completions.create(
                    model="smol", prompt=f"The capital of {place} is", max_tokens=6, stream=True, **COLD
                )
                return "".join([chunk.choices[0].text async for chunk in stream])

            return list(await asyncio.gather(*map(one, ("France", "Italy", "Spain", "Japan"))))

    for text, capital in zip(asyncio.run(ask()), ("Paris", "Rome", "Madrid", "Tokyo"), strict=True):
        assert capital in text


def test_n_stop_seed_logprobs_and_bias(client: openai.OpenAI) -> None:
    one = client.chat.completions.create(model="smol", messages=ASK, max_tokens=12, n=3, seed=4, temperature=1.3)
    two = client.chat.completions.create(model="smol", messages=ASK, max_tokens=12, n=3, seed=4, temperature=1.3)
    assert [each.message.content for each in one.choices] == [each.message.content for each in two.choices]
    stopped = client.chat.completions.create(model="smol", messages=ASK, max_tokens=40, stop=["classic"], **COLD)
    assert "classic" not in (stopped.choices[0].message.content or "")
    scored = client.chat.completions.create(
        model="smol", messages=ASK, max_tokens=4, logprobs=True, top_logprobs=5, **COLD
    )
    assert scored.choices[0].logprobs is not None
    assert [len(each.top_logprobs) for each in scored.choices[0].logprobs.content or []] == [5] * 4
    ids = client.post("/tokenize", cast_to=object, body={"prompt": scored.choices[0].logprobs.content[0].token})  # type: ignore[index]
    bias = {str(token): -100 for token in ids["tokens"]}  # type: ignore[index]
    other = client.chat.completions.create(model="smol", messages=ASK, max_tokens=4, logit_bias=bias, **COLD)
    assert other.choices[0].message.content != scored.choices[0].message.content


def test_a_call_that_is_cut_off_before_its_name_is_not_content(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "smol", "messages": ASK, "tools": TOOLS, "max_tokens": 5, **COLD}
    for more in ({"tool_choice": "required"}, {"response_format": {"type": "json_object"}}):
        choice = client.chat.completions.create(**asked, **more).choices[0]
        assert choice.finish_reason == "length"
        assert "<" not in (choice.message.content or "")
    assert not client.chat.completions.create(**asked, tool_choice="required").choices[0].message.content


def test_tools_whole_and_in_deltas(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "smol", "messages": ASK, "tools": TOOLS, "max_tokens": 60, **COLD}
    asked["parallel_tool_calls"] = False
    made = client.chat.completions.create(tool_choice={"type": "function", "function": {"name": "clock"}}, **asked)
    calls = made.choices[0].message.tool_calls or []
    assert made.choices[0].finish_reason == "tool_calls"
    assert {call.function.name for call in calls} == {"clock"}
    assert all(json.loads(call.function.arguments)["city"] in ("Paris", "Rome") for call in calls)
    parts: dict[int, dict[str, str]] = {}
    for chunk in client.chat.completions.create(tool_choice="required", stream=True, **asked):
        for delta in chunk.choices[0].delta.tool_calls or []:
            part = parts.setdefault(delta.index, {"id": "", "name": "", "arguments": ""})
            part["id"] += delta.id or ""
            part["name"] += (delta.function.name or "") if delta.function else ""
            part["arguments"] += (delta.function.arguments or "") if delta.function else ""
    assert parts
    assert sorted(parts) == list(range(len(parts)))
    for part in parts.values():
        assert part["name"] in ("weather", "clock")
        assert part["id"].startswith("call_")
        assert json.loads(part["arguments"])["city"] in ("Paris", "Rome")
    call = calls[0]
    dialog = [
        *ASK,
        made.choices[0].message.model_dump(exclude_none=True) | {"tool_calls": [call.model_dump()]},
        {"role": "tool", "tool_call_id": call.id, "content": '{"time": "12:00"}'},
    ]
    assert client.chat.completions.create(model="smol", messages=dialog, tools=TOOLS, max_tokens=20).choices
    assert client.chat.completions.create(tool_choice="none", **asked).choices[0].message.tool_calls is None
    assert client.chat.completions.create(tool_choice="auto", **asked).choices


def test_parallel_calls(client: openai.OpenAI) -> None:
    """Seeds until a model this small makes two calls at once."""
    for seed in range(20):
        made = client.chat.completions.create(
            model="smol", messages=[{"role": "user", "content": "The weather in Paris and in Rome?"}], tools=TOOLS,
            tool_choice="required", parallel_tool_calls=True, seed=seed, temperature=1.5, max_tokens=300,
        )  # fmt: skip
        calls = made.choices[0].message.tool_calls or []
        assert all(json.loads(call.function.arguments)["city"] in ("Paris", "Rome") for call in calls)
        assert len({call.id for call in calls}) == len(calls)
        if len(calls) > 1:
            return
    pytest.fail("no answer had two calls")


def test_structured_output(client: openai.OpenAI) -> None:
    parsed = client.chat.completions.parse(
        model="smol", messages=ASK, response_format=City, max_tokens=120, seed=1
    )  # fmt: skip
    assert isinstance(parsed.choices[0].message.parsed, City)
    called = client.chat.completions.parse(
        model="smol", messages=ASK, tools=[openai.pydantic_function_tool(weather)], tool_choice="required", seed=1,
        max_tokens=200,
    )  # fmt: skip
    for call in called.choices[0].message.tool_calls or []:
        assert isinstance(call.function.parsed_arguments, weather)
    with client.chat.completions.stream(
        model="smol", messages=ASK, response_format=City, max_tokens=120, seed=1
    ) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == parsed.choices[0].message.parsed
    whole = client.chat.completions.create(
        model="smol", messages=ASK, response_format={"type": "json_object"}, max_tokens=200, seed=1
    )
    if whole.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(whole.choices[0].message.content or ""), dict)
    both = client.chat.completions.create(
        model="smol", messages=ASK, tools=TOOLS, seed=2, max_tokens=200,
        response_format={"type": "json_schema", "json_schema": {"name": "c", "schema": City.model_json_schema()}},
    )  # fmt: skip
    message = both.choices[0].message
    if not message.tool_calls and both.choices[0].finish_reason == "stop":
        City.model_validate_json(message.content or "")


def test_responses(client: openai.OpenAI) -> None:
    made = client.responses.create(model="smol", input=ASK[0]["content"], max_output_tokens=20, **COLD)
    assert made.output_text == ANSWER
    assert made.status == "completed"
    assert made.usage is not None
    assert made.usage.output_tokens_details.reasoning_tokens == 0
    assert made.usage.input_tokens_details.cached_tokens >= 0
    with client.responses.stream(model="smol", input=ASK, max_output_tokens=20, **COLD) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert stream.get_final_response().output_text == text == made.output_text
    events = list(client.responses.create(model="smol", input=ASK, max_output_tokens=20, stream=True, **COLD))
    assert events[-1].type == "response.completed"
    parsed = client.responses.parse(model="smol", input=ASK, text_format=City, max_output_tokens=120, **COLD)
    assert isinstance(parsed.output_parsed, City)
    tool = {"type": "function", "strict": True, **TOOLS[0]["function"]}  # type: ignore[dict-item]
    called = client.responses.create(
        model="smol", input=ASK, tools=[tool], tool_choice="required", parallel_tool_calls=False, max_output_tokens=200
    )
    (item,) = called.output
    assert item.type == "function_call"
    assert json.loads(item.arguments)["city"] in ("Paris", "Rome")
    result = {"type": "function_call_output", "call_id": item.call_id, "output": "sunny"}
    dialog = [*ASK, item.model_dump(exclude_none=True), result]
    assert client.responses.create(model="smol", input=dialog, tools=[tool], max_output_tokens=10).output


def test_completions(client: openai.OpenAI) -> None:
    made = client.completions.create(model="smol", prompt="The capital of France is", max_tokens=3, **COLD)
    assert "Paris" in made.choices[0].text
    several = client.completions.create(model="smol", prompt=["One, two,", "Red, green,"], max_tokens=3, n=2, seed=1)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    echoed = client.completions.create(
        model="smol", prompt="The capital of France is", max_tokens=0, echo=True, logprobs=1
    )
    assert echoed.choices[0].text == "The capital of France is"
    assert echoed.choices[0].logprobs is not None
    ids = client.post("/tokenize", cast_to=object, body={"prompt": "The capital of France is"})["tokens"]  # type: ignore[index]
    assert client.completions.create(model="smol", prompt=ids, max_tokens=3, **COLD).choices[0].text == (
        made.choices[0].text
    )
    streamed = client.completions.create(
        model="smol", prompt="The capital of France is", max_tokens=3, stream=True, **COLD
    )
    assert "".join(chunk.choices[0].text for chunk in streamed) == made.choices[0].text
    with pytest.raises(openai.BadRequestError, match="no tokens for filling a gap"):
        client.completions.create(model="smol", prompt="def f(", suffix="return 1")


def test_embeddings(client: openai.OpenAI) -> None:
    texts = ["The cat sat on the mat.", "A cat is sitting on a mat.", "Stock prices fell sharply on Monday."]
    packed = [each.embedding for each in client.embeddings.create(model="smol", input=texts).data]
    plain = [
        each.embedding for each in client.embeddings.create(model="smol", input=texts, encoding_format="float").data
    ]
    assert packed[0] == pytest.approx(plain[0], abs=1e-6)

    def near(one: list[float], other: list[float]) -> float:
        return sum(a * b for a, b in zip(one, other, strict=True))

    assert near(plain[0], plain[1]) > near(plain[0], plain[2])


def test_models_raw_answers_and_options(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["smol"]
    assert client.models.retrieve("smol").id == "smol"
    raw = client.chat.completions.with_raw_response.create(model="smol", messages=ASK, max_tokens=2)
    assert raw.headers["x-request-id"]
    assert raw.parse().choices
    with client.chat.completions.with_streaming_response.create(model="smol", messages=ASK, max_tokens=2) as streamed:
        assert b"chat.completion" in streamed.read()
    extra = client.chat.completions.create(
        model="smol", messages=ASK, max_tokens=2, extra_body={"top_k": 1, "min_p": 0.1}, extra_headers={"x-a": "b"},
        extra_query={"a": "b"},
    )  # fmt: skip
    assert extra._request_id


def test_errors(smol: Running, client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="smol", messages=[], max_tokens=2)
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-9", messages=ASK)
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.05).chat.completions.create(model="smol", messages=ASK, max_tokens=500)
    with pytest.raises(openai.NotFoundError):
        client.post("/nowhere", cast_to=object)

    async def crowd() -> list[object]:
        async with openai.AsyncOpenAI(base_url=f"{smol.url}/v1", api_key="secret", max_retries=0) as made:
            asks = [
                made.chat.completions.create(
                    model="smol", messages=ASK, max_tokens=60, n=1, extra_body={"ignore_eos": True}
                )
                for _ in range(40)
            ]
            return list(await asyncio.gather(*asks, return_exceptions=True))

    refused = [each for each in asyncio.run(crowd()) if isinstance(each, BaseException)]
    assert refused
    assert all(isinstance(each, openai.RateLimitError) for each in refused)
    assert refused[0].response.headers["retry-after"]  # type: ignore[attr-defined]


# ---- Anthropic


def test_messages(claude: anthropic.Anthropic) -> None:
    made = claude.messages.create(model="smol", max_tokens=20, messages=ASK, extra_body=COLD)
    assert made.content[0].text == ANSWER  # type: ignore[union-attr]
    assert made.stop_reason == "end_turn"
    system = [{"type": "text", "text": "Answer in one word.", "cache_control": {"type": "ephemeral"}}]
    assert claude.messages.create(model="smol", max_tokens=4, messages=ASK, system=system).content
    with claude.messages.stream(model="smol", max_tokens=20, messages=ASK, extra_body=COLD) as stream:
        text = "".join(stream.text_stream)
        assert stream.get_final_message().usage.output_tokens == made.usage.output_tokens
    assert text == made.content[0].text  # type: ignore[union-attr]
    kinds = [event.type for event in claude.messages.create(model="smol", max_tokens=4, messages=ASK, stream=True)]
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"
    stopped = claude.messages.create(
        model="smol", max_tokens=40, messages=ASK, stop_sequences=["classic"], extra_body=COLD
    )
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "classic")
    counted = claude.messages.count_tokens(model="smol", messages=ASK, system="x")
    assert counted.input_tokens > 10
    for thinking in ({"type": "enabled", "budget_tokens": 1024}, {"type": "disabled"}, {"type": "adaptive"}):
        assert claude.messages.create(model="smol", max_tokens=20, messages=ASK, thinking=thinking).content  # type: ignore[arg-type]
    assert claude.beta.messages.create(model="smol", max_tokens=4, messages=ASK, betas=["x-2025-01-01"]).content
    assert [model.id for model in claude.models.list()] == ["smol"]
    assert claude.models.retrieve("smol").display_name == "smol"


def test_messages_with_tools(claude: anthropic.Anthropic) -> None:
    tools = [{"name": "weather", "description": "The weather of a city", "input_schema": PLACE}]
    choice = {"type": "any", "disable_parallel_tool_use": True}
    with claude.messages.stream(model="smol", max_tokens=100, messages=ASK, tools=tools, tool_choice=choice) as stream:
        final = stream.get_final_message()
    (block,) = final.content
    assert block.type == "tool_use"
    assert final.stop_reason == "tool_use"
    assert block.input["city"] in ("Paris", "Rome")  # type: ignore[index]
    result = {"type": "tool_result", "tool_use_id": block.id, "content": [{"type": "text", "text": "sunny"}]}
    dialog = [*ASK, {"role": "assistant", "content": final.content}, {"role": "user", "content": [result]}]
    assert claude.messages.create(model="smol", max_tokens=10, messages=dialog, tools=tools).content
    form = {"format": {"type": "json_schema", "schema": City.model_json_schema()}}
    made = claude.messages.create(
        model="smol", max_tokens=120, messages=ASK, output_config=form, extra_body={"top_k": 1}
    )
    City.model_validate_json(made.content[0].text)  # type: ignore[union-attr]


def test_errors_of_messages(claude: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError):
        claude.messages.create(model="smol", max_tokens=4, messages=[])
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.create(model="claude-9", max_tokens=4, messages=ASK)
    with pytest.raises(anthropic.AuthenticationError):
        claude.with_options(api_key="wrong").messages.create(model="smol", max_tokens=4, messages=ASK)


def test_the_async_client_of_anthropic(smol: Running) -> None:
    async def ask() -> str:
        async with (
            anthropic.AsyncAnthropic(base_url=smol.url, api_key="secret", max_retries=0) as made,
            made.messages.stream(model="smol", max_tokens=20, messages=ASK, extra_body=COLD) as stream,
        ):
            return "".join([text async for text in stream.text_stream])

    assert asyncio.run(ask()) == ANSWER


# ---- Ollama


def test_ollamas_methods(llama: ollama.Client) -> None:
    few = {"temperature": 0, "num_predict": 20}
    whole = llama.chat("smol", messages=ASK, options=few)
    assert whole.message.content == ANSWER
    pieces = llama.chat("smol", messages=ASK, options=few, stream=True)
    assert "".join(piece.message.content or "" for piece in pieces) == whole.message.content
    shaped = llama.chat("smol", messages=ASK, format=City.model_json_schema(), options=few | {"num_predict": 60})
    City.model_validate_json(shaped.message.content or "")
    loose = llama.generate("smol", "Name a city.", format="json", options={"temperature": 0, "num_predict": 40})
    assert (loose.response or "").lstrip().startswith("{")
    called = llama.chat("smol", messages=ASK, tools=TOOLS, options=few)
    assert called.done
    made = llama.generate("smol", "The capital of France is", raw=True, options={"temperature": 0, "num_predict": 3})
    assert "Paris" in made.response
    first = llama.generate("smol", ASK[0]["content"], options=few, system="Be brief.")
    assert llama.generate("smol", "And of Italy?", options=few, context=first.context).response
    assert len(llama.embed("smol", input=["a", "b"]).embeddings) == 2
    assert llama.embeddings("smol", prompt="a").embedding
    assert [model.model for model in llama.list().models] == ["smol"]
    assert [model.model for model in llama.ps().models] == ["smol"]
    shown = llama.show("smol")
    assert shown.details is not None
    assert (shown.details.family, shown.details.parameter_size) == ("llama", "134.52M")
    assert (shown.details.quantization_level, shown.license) == ("Q4_1", "apache-2.0")
    assert (shown.modelinfo or {})["general.parameter_count"] == 134_515_008
    assert llama.pull("smol").status == "success"
    scored = llama.chat("smol", messages=ASK, options=few, logprobs=True, top_logprobs=2)
    assert scored.logprobs
    for unknown in (llama.delete, llama.push):
        with pytest.raises(ollama.ResponseError):
            unknown("smol")
    with pytest.raises(ollama.ResponseError):
        llama.copy("smol", "other")
    with pytest.raises(ollama.ResponseError) as told:
        llama.chat("other", messages=ASK)
    assert told.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="does not support thinking"):
        llama.chat("smol", messages=ASK, think=True)
    assert llama.generate("smol", keep_alive=0).done_reason == "unload"
    assert not llama.ps().models


def test_ollamas_async_client(smol: Running) -> None:
    async def ask() -> tuple[str, str, int]:
        made = ollama.AsyncClient(host=smol.url, headers={"authorization": "Bearer secret"}, trust_env=False)
        few = {"temperature": 0, "num_predict": 20}
        whole = await made.chat("smol", messages=ASK, options=few)
        text = ""
        async for piece in await made.generate("smol", ASK[0]["content"], options=few, stream=True):
            text += piece.response
        count = len((await made.list()).models) + len((await made.embed("smol", input="a")).embeddings)
        await made.show("smol")
        await made.ps()
        await made._client.aclose()
        return whole.message.content or "", text, count

    chat, text, count = asyncio.run(ask())
    assert chat == text
    assert count == 2
