"""The official client of OpenAI against a running server: its documented calls, sync and async, whole and streamed."""

import asyncio
from collections.abc import Iterator

import openai
import pytest

from system.serve.running_server import Running

ASK = [{"role": "user", "content": "Once upon a time"}]


@pytest.fixture(scope="module")
def client(served: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["story"]
    assert client.models.retrieve("story").object == "model"
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt-4'"):
        client.models.retrieve("gpt-4")


def test_a_chat(client: openai.OpenAI) -> None:
    made = client.chat.completions.create(model="story", messages=ASK, max_tokens=12, temperature=0)
    (choice,) = made.choices
    assert made.object == "chat.completion"
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason == "length"
    assert made.usage is not None
    assert made.usage.completion_tokens == 12
    assert made.usage.total_tokens == made.usage.prompt_tokens + 12


def test_a_streamed_chat_says_the_same(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="story", messages=ASK, max_tokens=20, temperature=0)
    chunks = list(
        client.chat.completions.create(
            model="story", messages=ASK, max_tokens=20, temperature=0, stream=True,
            stream_options={"include_usage": True},
        )
    )  # fmt: skip
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 20
    assert {chunk.id for chunk in chunks} == {chunks[0].id}


def test_several_answers_each_with_a_seed_of_its_own(client: openai.OpenAI) -> None:
    made = client.chat.completions.create(model="story", messages=ASK, max_tokens=12, n=3, seed=7, temperature=1.2)
    again = client.chat.completions.create(model="story", messages=ASK, max_tokens=12, n=3, seed=7, temperature=1.2)
    texts = [choice.message.content for choice in made.choices]
    assert [choice.index for choice in made.choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert [choice.message.content for choice in again.choices] == texts
    streamed = ["", "", ""]
    for chunk in client.chat.completions.create(
        model="story", messages=ASK, max_tokens=12, n=3, seed=7, temperature=1.2, stream=True
    ):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts


def test_stop_ends_an_answer_before_the_text(client: openai.OpenAI) -> None:
    made = client.chat.completions.create(model="story", messages=ASK, max_tokens=200, temperature=0, stop=["."])
    assert made.choices[0].finish_reason == "stop"
    assert "." not in (made.choices[0].message.content or "")


def test_log_probabilities(client: openai.OpenAI) -> None:
    made = client.chat.completions.create(
        model="story", messages=ASK, max_tokens=5, temperature=0, logprobs=True, top_logprobs=3
    )
    logprobs = made.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len(logprobs.content) == 5
    for entry in logprobs.content:
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].logprob == entry.logprob <= 0
        assert bytes(entry.bytes or []).decode() == entry.token
    chunks = client.chat.completions.create(
        model="story", messages=ASK, max_tokens=5, temperature=0, logprobs=True, top_logprobs=3, stream=True
    )
    told = [
        entry
        for chunk in chunks
        for entry in ((chunk.choices[0].logprobs.content or []) if chunk.choices[0].logprobs else [])
    ]
    assert [entry.token for entry in told] == [entry.token for entry in logprobs.content]


def test_a_bias_forbids_a_token(client: openai.OpenAI) -> None:
    free = client.completions.create(model="story", prompt="Once upon", max_tokens=1, temperature=0, logprobs=0)
    assert free.choices[0].logprobs is not None
    ids = client.post("/tokenize", cast_to=object, body={"prompt": free.choices[0].text, "add_special_tokens": False})
    token = ids["tokens"][-1]  # type: ignore[index]
    other = client.completions.create(
        model="story", prompt="Once upon", max_tokens=1, temperature=0, logit_bias={str(token): -100}
    )
    assert other.choices[0].text != free.choices[0].text


def test_an_answer_of_a_given_form(client: openai.OpenAI) -> None:
    for form, wanted in (
        ({"type": "choice", "choice": ["Lily", "Tom"]}, ("Lily", "Tom")),
        ({"type": "regex", "regex": "[ab]{3}"}, ("aaa", "aab", "aba", "abb", "baa", "bab", "bba", "bbb")),
    ):
        made = client.chat.completions.create(
            model="story", messages=ASK, max_tokens=60, seed=3, extra_body={"response_format": form}
        )
        assert made.choices[0].message.content in wanted
        assert made.choices[0].finish_reason == "stop"


def test_a_form_that_the_model_cannot_write_is_the_callers_to_change(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="the grammar"):  # the story's tokens know no braces
        client.chat.completions.create(model="story", messages=ASK, response_format={"type": "json_object"})


def test_a_bad_schema_is_one_400_and_others_do_not_feel_it(client: openai.OpenAI) -> None:
    for schema in ({"type": "nonsense"}, {"type": "string", "pattern": "(?<=a)b"}):
        with pytest.raises(openai.BadRequestError, match="grammar"):
            client.chat.completions.create(
                model="story",
                messages=ASK,
                response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
            )
    assert client.chat.completions.create(model="story", messages=ASK, max_tokens=2).choices


def test_completions_of_texts_and_of_ids(client: openai.OpenAI) -> None:
    one = client.completions.create(model="story", prompt="The dog", max_tokens=8, temperature=0)
    several = client.completions.create(model="story", prompt=["The dog", "Lily"], max_tokens=8, temperature=0)
    assert several.choices[0].text == one.choices[0].text
    assert [choice.index for choice in several.choices] == [0, 1]
    ids = client.post("/tokenize", cast_to=object, body={"prompt": "The dog"})["tokens"]  # type: ignore[index]
    of_ids = client.completions.create(model="story", prompt=ids, max_tokens=8, temperature=0)
    assert of_ids.choices[0].text == one.choices[0].text
    of_lists = client.completions.create(model="story", prompt=[ids, ids], max_tokens=8, temperature=0)
    assert [choice.text for choice in of_lists.choices] == [one.choices[0].text] * 2


def test_echo_with_log_probabilities_scores_the_prompt(client: openai.OpenAI) -> None:
    made = client.completions.create(model="story", prompt="Once upon a time", max_tokens=0, echo=True, logprobs=1)
    (choice,) = made.choices
    assert choice.text == "Once upon a time"
    assert choice.logprobs is not None
    assert choice.logprobs.token_logprobs is not None
    assert choice.logprobs.token_logprobs[0] is None
    assert all(score <= 0 for score in choice.logprobs.token_logprobs[1:])
    longer = client.completions.create(
        model="story", prompt="Once upon a time", max_tokens=4, echo=True, logprobs=1, temperature=0
    )
    assert longer.choices[0].text.startswith("Once upon a time")
    assert longer.choices[0].logprobs is not None
    assert longer.choices[0].logprobs.token_logprobs is not None
    assert longer.choices[0].logprobs.token_logprobs[: len(choice.logprobs.token_logprobs)] == (
        choice.logprobs.token_logprobs
    )


def test_echoed_log_probabilities_come_in_pieces_as_they_come_whole(client: openai.OpenAI) -> None:
    asked = {"model": "story", "prompt": "Once upon a time", "max_tokens": 6, "echo": True, "logprobs": 1}
    (whole,) = client.completions.create(temperature=0, **asked).choices  # type: ignore[call-overload]
    pieces = list(client.completions.create(temperature=0, stream=True, **asked))  # type: ignore[call-overload]
    scores = [each.choices[0].logprobs for each in pieces]
    for name in ("tokens", "token_logprobs", "text_offset"):
        assert [one for each in scores for one in getattr(each, name)] == getattr(whole.logprobs, name)
    assert "".join(each.choices[0].text for each in pieces) == whole.text
    with pytest.raises(openai.BadRequestError, match="leave out stream"):
        client.completions.create(model="story", prompt="Once", max_tokens=0, echo=True, stream=True)


def test_more_log_probabilities_of_prompts_than_can_be_held_are_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="10500 tokens of prompts with 101 log probabilities each"):
        client.completions.create(model="story", prompt=[[53] * 500] * 21, max_tokens=0, echo=True, logprobs=100)


def test_best_of_gives_the_likeliest(client: openai.OpenAI) -> None:
    made = client.completions.create(
        model="story", prompt="Lily", max_tokens=6, best_of=4, n=2, seed=1, temperature=1.5
    )
    assert len(made.choices) == 2
    with pytest.raises(openai.BadRequestError, match="best_of compares whole answers"):
        client.completions.create(model="story", prompt="Lily", best_of=2, stream=True)
    with pytest.raises(openai.BadRequestError, match="suffix is not supported"):
        client.completions.create(model="story", prompt="Lily", suffix="end")


def test_embeddings_are_of_length_one_in_either_form(client: openai.OpenAI) -> None:
    floats = client.embeddings.create(model="story", input=["a dog", "a cat"], encoding_format="float")
    packed = client.embeddings.create(model="story", input=["a dog", "a cat"])  # base64, which the client unpacks
    assert [len(each.embedding) for each in floats.data] == [len(each.embedding) for each in packed.data]
    for one, other in zip(floats.data, packed.data, strict=True):
        assert sum(value * value for value in one.embedding) == pytest.approx(1, abs=1e-5)
        assert one.embedding == pytest.approx(other.embedding, abs=1e-6)


def test_what_was_computed_before_is_counted(client: openai.OpenAI) -> None:
    text = "Lily and Tom went to the park to play with the ball and the dog. " * 8
    first = client.completions.create(model="story", prompt=text, max_tokens=1)
    again = client.completions.create(model="story", prompt=text, max_tokens=1)
    assert first.usage is not None
    assert again.usage is not None
    assert again.usage.prompt_tokens_details is not None
    assert again.usage.prompt_tokens_details.cached_tokens > 60  # type: ignore[operator]
    miss = first.usage.prompt_tokens_details.model_extra["cache_miss"]  # type: ignore[union-attr, index]
    assert miss == "first seen"


def test_too_long_a_prompt_is_refused_with_the_numbers(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"the prompt has \d+ tokens, the context holds 512") as told:
        client.chat.completions.create(model="story", messages=[{"role": "user", "content": "dog " * 2000}])
    assert told.value.code == "context_length_exceeded"
    assert '"roll": true' in told.value.message
    assert "--" not in told.value.message


def test_the_async_client(served: Running) -> None:
    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as made:

            async def one(text: str) -> str:
                stream = await made.chat.completions.create(
                    model="story",
                    messages=[{"role": "user", "content": text}],
                    max_tokens=16,
                    temperature=0,
                    stream=True,
                )
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            together = await asyncio.gather(*(one(text) for text in ("Lily", "The dog", "Tom")))
            alone = [await one(text) for text in ("Lily", "The dog", "Tom")]
            assert together == alone
            return together

    assert all(asyncio.run(ask()))
