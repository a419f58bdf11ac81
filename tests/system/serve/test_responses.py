"""OpenAI's responses API, by the official client; and tools, with a model that can write them."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import anthropic
import ollama
import openai
import pytest

from sporelm.serve.serve_config import ModelSpec
from system.serve.running_server import Running

WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
ASK = "What is the weather in Paris?"


@pytest.fixture(scope="module")
def client(served: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_a_response(client: openai.OpenAI) -> None:
    made = client.responses.create(model="story", input="Once upon a time", max_output_tokens=12, temperature=0)
    assert made.output_text
    assert made.status == "incomplete"
    assert made.incomplete_details is not None
    assert made.incomplete_details.reason == "max_output_tokens"
    assert made.usage is not None
    assert made.usage.output_tokens == 12
    chat = client.chat.completions.create(
        model="story", messages=[{"role": "user", "content": "Once upon a time"}], max_tokens=12, temperature=0
    )
    assert made.output_text == chat.choices[0].message.content


def test_a_streamed_response_says_the_same(client: openai.OpenAI) -> None:
    whole = client.responses.create(model="story", input="Once upon a time", max_output_tokens=12, temperature=0)
    with client.responses.stream(
        model="story", input="Once upon a time", max_output_tokens=12, temperature=0
    ) as stream:
        events = list(stream)
    assert events[-1].response.output_text == whole.output_text  # type: ignore[union-attr]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created"
    assert events[-1].type == "response.incomplete"


def test_log_probabilities(client: openai.OpenAI) -> None:
    asked = {"model": "story", "input": "Once upon a time", "max_output_tokens": 5, "temperature": 0}
    chat = client.chat.completions.create(
        model="story", messages=[{"role": "user", "content": "Once upon a time"}], max_tokens=5, temperature=0,
        logprobs=True,
    )  # fmt: skip
    assert chat.choices[0].logprobs is not None
    wanted = [(each.token, each.logprob) for each in chat.choices[0].logprobs.content or []]
    for more, top in (({"include": ["message.output_text.logprobs"]}, 0), ({"top_logprobs": 2}, 2)):
        made = client.responses.create(**asked, **more)  # type: ignore[call-overload]
        told = made.output[0].content[0].logprobs
        assert [(each.token, each.logprob) for each in told] == wanted
        assert all(len(each.top_logprobs) == top for each in told)
        with client.responses.stream(**asked, **more) as stream:  # type: ignore[arg-type]
            events = list(stream)
        deltas = [each for event in events if event.type == "response.output_text.delta" for each in event.logprobs]
        assert [(each.token, each.logprob) for each in deltas] == wanted
        (done,) = [event for event in events if event.type == "response.output_text.done"]
        assert [(each.token, each.logprob) for each in done.logprobs] == wanted  # type: ignore[attr-defined]
    plain = client.responses.create(**asked)  # type: ignore[call-overload]
    assert plain.output[0].content[0].logprobs == []


def test_dialogs_are_sent_whole(client: openai.OpenAI) -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "Once upon"}]},
        {"role": "assistant", "content": "a time"},
        {"role": "user", "content": "the dog"},
    ]
    assert client.responses.create(model="story", input=items, instructions="Go on", max_output_tokens=4).output_text
    with pytest.raises(openai.BadRequestError, match="stores no responses"):
        client.responses.create(model="story", input="x", previous_response_id="resp_1")
    image = [{"role": "user", "content": [{"type": "input_image", "image_url": "http://169.254.169.254/"}]}]
    with pytest.raises(openai.BadRequestError, match=r"input\[0\].content\[0\] is at .*--allow-image-host"):
        client.responses.create(model="story", input=image)


@pytest.mark.all
def test_tools_by_every_client(smollm2: Path, serve: Callable[..., Running]) -> None:
    url = serve(models=(ModelSpec("smol", str(smollm2)),)).url
    chat_tool = {"type": "function", "function": WEATHER}
    messages = [{"role": "user", "content": ASK}]
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        asked = {"model": "smol", "messages": messages, "tools": [chat_tool], "tool_choice": "required", "seed": 1}
        made = client.chat.completions.create(**asked, parallel_tool_calls=False)
        (call,) = made.choices[0].message.tool_calls or []
        assert call.function.name == "get_weather"
        assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")
        assert made.choices[0].finish_reason == "tool_calls"
        streamed = ""
        for chunk in client.chat.completions.create(**asked, parallel_tool_calls=False, stream=True):
            for each in chunk.choices[0].delta.tool_calls or []:
                streamed += each.function.arguments or ""  # type: ignore[union-attr]
        assert json.loads(streamed) == json.loads(call.function.arguments)
        answered = [*messages, made.choices[0].message.model_dump(exclude_none=True)]
        result = {"role": "tool", "tool_call_id": call.id, "content": '{"sky": "clear"}'}
        assert client.chat.completions.create(model="smol", messages=[*answered, result], max_tokens=8).choices
        response = client.responses.create(
            model="smol", input=ASK, tools=[{"type": "function", **WEATHER}], tool_choice="required",
            parallel_tool_calls=False, temperature=0,
        )  # fmt: skip
        (item,) = response.output
        assert item.type == "function_call"
        assert json.loads(item.arguments)["city"] in ("Paris", "Rome")
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        tool = {
            "name": "get_weather",
            "description": WEATHER["description"],
            "input_schema": WEATHER["parameters"],
        }
        choice = {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}
        with client.messages.stream(
            model="smol", max_tokens=100, messages=messages, tools=[tool], tool_choice=choice
        ) as stream:
            final = stream.get_final_message()
        (block,) = final.content
        assert (block.type, final.stop_reason) == ("tool_use", "tool_use")
        assert block.input["city"] in ("Paris", "Rome")  # type: ignore[index]
        result = {"type": "tool_result", "tool_use_id": block.id, "content": "clear"}
        dialog = [*messages, {"role": "assistant", "content": final.content}, {"role": "user", "content": [result]}]
        assert client.messages.create(model="smol", max_tokens=8, messages=dialog, tools=[tool]).content
    told = ollama.Client(host=url, trust_env=False)
    assert told.chat("smol", messages=messages, tools=[chat_tool], options={"num_predict": 30}).done
    told._client.close()
