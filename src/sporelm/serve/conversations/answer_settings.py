"""The settings of a conversation as fields of a chat request."""

from collections.abc import Mapping
from typing import Any

import msgspec

from sporelm.serve.chat.sampling_fields import MaxTokens, SamplingFields
from sporelm.serve.conversations.conversation_schema import InvalidConversation, Json


class AnswerSettings(SamplingFields, kw_only=True):
    """The fields of a chat request that a conversation's settings may set."""

    max_tokens: MaxTokens | None = None


def request_fields(settings: Mapping[str, Any]) -> Json:
    """Return stored settings as fields of a request: empty ones are left to the server, `stop` is a list."""
    fields = {name: value for name, value in settings.items() if value is not None and value != ""}
    if "stop" in fields:
        fields["stop"] = [fields["stop"]]
    return fields


def parse_settings(fields: Mapping[str, Any]) -> AnswerSettings:
    """Return the fields of `request_fields`, checked by their types. Raises InvalidConversation."""
    try:
        return msgspec.convert(dict(fields), AnswerSettings)
    except msgspec.ValidationError as reason:
        _, mark, path = str(reason).rpartition(" - at `$.")
        param = f"settings.{path.rstrip('`')}" if mark else "settings"
        raise InvalidConversation(f"settings are not valid: {reason}", param) from None


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raise InvalidConversation for settings with which no answer could be generated."""
    parse_settings(request_fields(settings))
