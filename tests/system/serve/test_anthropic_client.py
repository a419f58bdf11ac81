"""The official client of Anthropic against a running server."""

from collections.abc import Iterator

import anthropic
import pytest

from system.serve.running_server import Running

ASK = [{"role": "user", "content": "Once upon a time"}]
COLD = {"temperature": 0}  # the client has no argument for it


@pytest.fixture(scope="module")
def client(served: Running) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=served.url, api_key="none", max_retries=0) as made:
        yield made


def test_a_message(client: anthropic.Anthropic) -> None:
    made = client.messages.create(model="story", max_tokens=12, messages=ASK, extra_body=COLD)
    assert (made.type, made.role, made.stop_reason) == ("message", "assistant", "max_tokens")
    assert made.content[0].type == "text"
    assert made.content[0].text
    assert made.id == f"msg_{made._request_id}"
    assert made.usage.output_tokens == 12
    assert made.usage.input_tokens > 0


def test_a_streamed_message_says_the_same(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(model="story", max_tokens=20, messages=ASK, extra_body=COLD)
    with client.messages.stream(model="story", max_tokens=20, messages=ASK, extra_body=COLD) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text  # type: ignore[union-attr]
    assert final.stop_reason == "max_tokens"
    assert final.usage.output_tokens == 20


def test_the_system_and_blocks_are_read(client: anthropic.Anthropic) -> None:
    plain = client.messages.create(
        model="story", max_tokens=8, extra_body=COLD, system="Be brief", messages=[{"role": "user", "content": "Lily"}]
    )
    blocks = client.messages.create(
        model="story",
        max_tokens=8,
        extra_body=COLD,
        system=[{"type": "text", "text": "Be brief", "cache_control": {"type": "ephemeral"}}],
        messages=[{"role": "user", "content": [{"type": "text", "text": "Li"}, {"type": "text", "text": "ly"}]}],
    )
    assert plain.content == blocks.content


def test_a_stop_sequence_is_named(client: anthropic.Anthropic) -> None:
    made = client.messages.create(
        model="story", max_tokens=200, messages=ASK, extra_body=COLD, stop_sequences=["zzz", "."]
    )
    assert (made.stop_reason, made.stop_sequence) == ("stop_sequence", ".")
    with client.messages.stream(
        model="story", max_tokens=200, messages=ASK, extra_body=COLD, stop_sequences=["zzz", "."]
    ) as stream:
        assert stream.get_final_message().stop_sequence == "."


def test_tokens_are_counted(client: anthropic.Anthropic) -> None:
    counted = client.messages.count_tokens(model="story", messages=ASK)
    made = client.messages.create(model="story", max_tokens=1, messages=ASK)
    assert counted.input_tokens == made.usage.input_tokens + (made.usage.cache_read_input_tokens or 0)


def test_errors_have_the_shape_that_the_client_knows(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="there is no model 'claude'") as refused:
        client.messages.create(model="claude", max_tokens=1, messages=ASK)
    assert refused.value.request_id
    image = {"type": "image", "source": {"type": "url", "url": "http://169.254.169.254/"}}
    with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\].content\[0\] is at .*--allow-image-host"):
        client.messages.create(model="story", max_tokens=1, messages=[{"role": "user", "content": [image]}])
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        client.messages.create(model="story", max_tokens=0, messages=ASK)
