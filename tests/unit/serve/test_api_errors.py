"""How errors are told to clients."""

import pytest

from sporelm.engine.engine_config import EngineConfig
from sporelm.engine.kv.prefix_cache import NEW_SALT
from sporelm.errors import ContextOverflow
from sporelm.serve.chat.token_usage import cache_miss_for_client
from sporelm.serve.http.api_errors import api_error_from, overflow_message
from sporelm.serve.http.json_body import find_invalid_text


def too_long(model_context: int, *, rolls: bool = True) -> ContextOverflow:
    limits = EngineConfig(512, model_context, 100, 64, 1, 64)
    try:
        limits.check_prompt(600, rolls=rolls)
    except ContextOverflow as error:
        return error
    raise AssertionError("600 tokens do not fit")


def test_a_prompt_that_is_too_long_is_told_with_what_a_client_can_do() -> None:
    fact = "the prompt has 600 tokens, the context holds 512: shorten it"
    larger = "; the server's operator can raise max_context, up to 2048 for this model"
    rolls = ', or send "roll": true, with which the window rolls on'
    assert api_error_from(too_long(2048)).message == fact + larger
    assert overflow_message(too_long(2048), accepts_roll=True) == fact + rolls + larger
    assert overflow_message(too_long(512), accepts_roll=True) == fact + rolls
    assert overflow_message(too_long(512, rolls=False), accepts_roll=True) == fact
    assert overflow_message(ContextOverflow("the text is too long")) == "the text is too long"
    assert "the option max_context" in str(too_long(2048)), "who runs the model here has options"


def test_clients_have_keys_and_no_salts() -> None:
    assert cache_miss_for_client(NEW_SALT) == "first request with this key"
    assert cache_miss_for_client("evicted") == "evicted"
    assert cache_miss_for_client(None) is None


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'{"a": "b"}', ""),
        (b'{"m": [{"content": "ab\xff"}]}', "m[0].content holds the byte 0xFF at position 2, which is not UTF-8"),
        (b'{"prompt": ["a", "\xc3\xa9\xc3"]}', "prompt[1] holds the byte 0xC3 at position 1, which is not UTF-8"),
        (b'{"a\xff": 1}', "a name holds the byte 0xFF at position 1, which is not UTF-8"),
        (b'"\\ud800"', "it holds half of a surrogate pair, U+D800 at position 0, which is not valid Unicode"),
        (b'{"\xc3\xa9": \xff', "byte 7 is 0xff, which is not UTF-8"),
        (b"[" * 5000 + b"\xff", "byte 5000 is 0xff, which is not UTF-8"),
    ],
)
def test_invalid_unicode_is_found_in_the_text_that_the_user_wrote(body: bytes, told: str) -> None:
    assert find_invalid_text(body) == told
