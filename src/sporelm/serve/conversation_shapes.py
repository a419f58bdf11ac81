"""The JSON of the conversations' routes, for their description at /docs; `conversation_form` is what checks it."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

Id = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
Time = Annotated[int, Meta(ge=0, le=(1 << 53) - 1, description="milliseconds since 1970")]
Entries = dict[str, bool | int | float | str | None]
Kind = Literal["chat", "completion"]


class StoredMessage(msgspec.Struct, forbid_unknown_fields=True):
    """A message; its parent, unless it is the first, stands before it in the list.

    `error` is {"code": ..., parameters} (a sentence in older files). The model is shown a branch from the message that
    `context_start` of its newest message names.
    """

    id: Id
    role: Literal["user", "assistant"]
    content: str
    parent: Id | None = None
    reasoning: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    finish: str | UnsetType = UNSET
    error: str | Entries | UnsetType = UNSET
    context_start: Id | UnsetType = UNSET
    created: Time | UnsetType = UNSET
    stats: Entries | UnsetType = UNSET


class ConversationFields(msgspec.Struct, forbid_unknown_fields=True):
    """What may be said of a conversation; every field may be left out."""

    title: Annotated[str, Meta(max_length=200)] | UnsetType = UNSET
    kind: Kind | UnsetType = UNSET
    model: str | UnsetType = UNSET
    system: str | UnsetType = UNSET
    settings: Entries | UnsetType = UNSET
    messages: list[StoredMessage] | UnsetType = UNSET
    current: Id | UnsetType | None = UNSET


class NewConversation(ConversationFields, kw_only=True):
    """A conversation to be kept, under an `id` of its own if it has one: a second time is a conflict, 409."""

    id: Id | UnsetType = UNSET


class KeptParts(msgspec.Struct, forbid_unknown_fields=True):
    """Of a message's texts, how many characters stay as they are kept."""

    content: int = 0
    reasoning: int = 0


class ChangedMessage(StoredMessage, kw_only=True):
    """A message; of one that says what is `kept`, content and reasoning are what follows that."""

    kept: KeptParts | UnsetType = UNSET


class ConversationChange(ConversationFields, kw_only=True):
    """What is to change, and the version that it was made from, or those that it may have been; `remove` names messages
    that go with all after them."""

    version: int | Annotated[list[int], Meta(min_length=1, max_length=4)]
    messages: list[ChangedMessage] | UnsetType = UNSET  # type: ignore[assignment]
    remove: list[Id] | UnsetType = UNSET


class ConversationSummary(msgspec.Struct):
    """What the list shows of a conversation. A search adds `hit`, the id of the best message, and `snippet`."""

    id: Id
    title: str
    kind: Kind
    model: str
    current: Id | None
    created: Time
    updated: Time
    version: int
    num_messages: int
    snippet: str | UnsetType = UNSET
    hit: Id | UnsetType = UNSET


class ConversationPage(msgspec.Struct):
    """Some of the key's conversations, and how many there are."""

    conversations: list[ConversationSummary]
    total: int


class StoredConversation(msgspec.Struct):
    """A whole conversation."""

    id: Id
    title: str
    kind: Kind
    model: str
    system: str
    settings: Entries
    messages: list[StoredMessage]
    current: Id | None
    created: Time
    updated: Time
    version: int


class OpenedConversation(StoredConversation, kw_only=True):
    """A whole conversation; `answering` is the id of the answer that is being written, if one is."""

    answering: Id | UnsetType = UNSET


class NewAnswer(msgspec.Struct, forbid_unknown_fields=True):
    """An answer to be written, under an `id` of its own: to the user's message `parent`; with `continue`, the rest of
    a stored answer."""

    id: Id
    model: Annotated[str, Meta(min_length=1, max_length=500)]
    parent: Id | UnsetType | None = UNSET
    goes_on: bool = msgspec.field(default=False, name="continue")


class AnswerBegun(msgspec.Struct):
    """The answer as far as it has come, and the conversation's version."""

    answer: StoredMessage
    version: int


class AnswerStopped(msgspec.Struct):
    """The answer that was stopped."""

    stopped: Id


class ConversationBundle(msgspec.Struct):
    """An export, as an import takes it."""

    format: Literal["sporelm-conversations"]
    format_version: Literal[1]
    conversations: list[StoredConversation]
    exported: Any = UNSET  # when, which nobody reads


class Imported(msgspec.Struct):
    """The new ids of what was imported."""

    imported: list[Id]


class Deleted(msgspec.Struct):
    """What was deleted."""

    deleted: Id
