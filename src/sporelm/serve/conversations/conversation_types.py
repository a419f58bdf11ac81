"""The JSON types of the conversation routes, for /docs. `conversation_schema` checks the values."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

Id = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
ImageId = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
Time = Annotated[int, Meta(ge=0, le=(1 << 53) - 1, description="milliseconds since 1970")]
Entries = dict[str, bool | int | float | str | None]
Kind = Literal["chat", "completion"]


class MessageImage(msgspec.Struct, forbid_unknown_fields=True):
    """A picture of a message, by the id that `POST /api/ui/images` returned; name and size are for showing it."""

    id: ImageId
    name: Annotated[str, Meta(max_length=200)] | UnsetType = UNSET
    width: Annotated[int, Meta(ge=1, le=1 << 20)] | UnsetType = UNSET
    height: Annotated[int, Meta(ge=1, le=1 << 20)] | UnsetType = UNSET


class StoredMessage(msgspec.Struct, forbid_unknown_fields=True):
    """A message. Its parent, if it has one, stands before it in the list.

    `error` is {"code": ..., parameters} (a sentence in older files). The prompt of a branch begins with the message
    that `context_start` of its newest message names.
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
    images: Annotated[list[MessageImage], Meta(max_length=32)] | UnsetType = UNSET


class ConversationFields(msgspec.Struct, forbid_unknown_fields=True):
    """The fields of a conversation that clients may set; all are optional."""

    title: Annotated[str, Meta(max_length=200)] | UnsetType = UNSET
    kind: Kind | UnsetType = UNSET
    model: str | UnsetType = UNSET
    system: str | UnsetType = UNSET
    settings: Entries | UnsetType = UNSET
    messages: list[StoredMessage] | UnsetType = UNSET
    current: Id | UnsetType | None = UNSET


class NewConversation(ConversationFields, kw_only=True):
    """A conversation to store. With an `id` of its own a second request is a conflict, 409."""

    id: Id | UnsetType = UNSET


class KeptText(msgspec.Struct, forbid_unknown_fields=True):
    """How many characters of a message's stored texts are kept."""

    content: int = 0
    reasoning: int = 0


class ChangedMessage(StoredMessage, kw_only=True):
    """A message. With `kept`, its content and reasoning follow the kept part of the stored ones."""

    kept: KeptText | UnsetType = UNSET  # old name: the field that clients send


class ConversationChange(ConversationFields, kw_only=True):
    """The fields to change, and the version that the change was made from, or the versions that it may have been made
    from. `remove` names messages that are removed with all their descendants."""

    version: int | Annotated[list[int], Meta(min_length=1, max_length=4)]
    messages: list[ChangedMessage] | UnsetType = UNSET  # type: ignore[assignment]
    remove: list[Id] | UnsetType = UNSET


class ConversationSummary(msgspec.Struct):
    """A conversation's entry in the list. A search adds `hit`, the id of the best message, and `snippet`."""

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


class ConversationList(msgspec.Struct):
    """A page of the key's conversations, and their total number."""

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


class ConversationReply(StoredConversation, kw_only=True):
    """A whole conversation; `answering` is the id of the answer that is being written, if any."""

    answering: Id | UnsetType = UNSET


class NewAnswer(msgspec.Struct, forbid_unknown_fields=True):
    """A request for an answer under an `id` of the client's choice: to the user's message `parent`, or with `continue`
    the rest of a stored answer."""

    id: Id
    model: Annotated[str, Meta(min_length=1, max_length=500)]
    parent: Id | UnsetType | None = UNSET
    continue_answer: bool = msgspec.field(default=False, name="continue")


class AnswerReply(msgspec.Struct):
    """The answer so far, and the conversation's version."""

    answer: StoredMessage
    version: int


class AnswerStopped(msgspec.Struct):
    """The id of the answer that was stopped."""

    stopped: Id


class ConversationExport(msgspec.Struct):
    """An exported file, which can be imported."""

    format: Literal["sporelm-conversations"]
    format_version: Literal[1]
    conversations: list[StoredConversation]
    images: dict[str, str] | UnsetType = UNSET  # base64 of the pictures, by their ids
    exported: Any = UNSET  # the time of the export, ignored by an import


class ImportReply(msgspec.Struct):
    """The new ids of the imported conversations."""

    imported: list[Id]


class ImageReply(msgspec.Struct):
    """A stored picture."""

    id: ImageId
    type: str
    bytes: int


class DeleteReply(msgspec.Struct):
    """The id of the deleted conversation."""

    deleted: Id
