"""A conversation: its messages and its KV cache, so that a turn computes only its own tokens."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from sporelm.api.completion import Piece
from sporelm.api.conversation_images import attach_pictures, detach_pictures, make_content, read_pictures
from sporelm.api.sampling_params import SamplingParams, check_single
from sporelm.api.text_generation import TextGeneration
from sporelm.api.user_paths import parse_path
from sporelm.engine import KvSequence
from sporelm.engine.kv.session_io import read_attachments
from sporelm.engine.prompt_images import PromptIds, is_image_id
from sporelm.engine.request import parse_int
from sporelm.errors import ModelFileError, RequestError, safe_repr
from sporelm.text import Detokenizer, RenderedPrompt

if TYPE_CHECKING:
    from sporelm.api.llm import LLM


MAX_PREFIX_CHARS = 1 << 21  # total length of the kept prefixes; each contains the ones before it
IMAGE_ROW_CHARS = 20  # an id of an image row counts as many: its digits in a session file


class RenderedPrefix(NamedTuple):
    """A prefix of the rendered history: the number of its messages, its text, the token ids in the KV cache, and how
    many of them are rows of images."""

    messages: int
    text: str
    ids: list[int]
    image_rows: int = 0

    @property
    def size(self) -> int:
        """About how many characters it takes in a session file."""
        return len(self.text) + IMAGE_ROW_CHARS * self.image_rows


EMPTY_PREFIX = RenderedPrefix(0, "", [])


class Conversation:
    """A chat with history, created by `LLM.conversation`. Its messages are dicts {"role", "content"}.

    The content of a message with pictures is a list of parts: {"type": "image", "image": bytes} and {"type": "text",
    "text"}; the bytes are those of a file. The system message, if any, is the first.
    """

    def __init__(self, llm: "LLM", system: str | None = None, *, salt: str = "") -> None:
        """Start a conversation, whose KV cache is shared only with requests of the same `salt`. Raises RequestError."""
        if system is not None and not isinstance(system, str):
            raise RequestError(f"the system message is {safe_repr(system)}: it must be a string, or None")
        llm.check_can_generate()
        self.llm = llm
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
        self._prefixes: list[
            RenderedPrefix
        ] = []  # after each answer, the latest last; old ones of long chats are dropped
        self._sequence: KvSequence | None = llm.engine.sequence(salt)

    def ask(
        self, text: str, params: SamplingParams | None = None, images: Sequence[Any] = ()
    ) -> Generator[Piece, None, None]:
        """Say `text` and yield the answer piece by piece. Both join the messages when the answer begins.

        images   pictures that the message shows, for a vision model: paths, bytes, data URIs, PIL images, uint8
                 arrays [height, width, 3], or lists of frames. They are kept as bytes

        Closing the iterator early keeps the answer so far; before the answer begins, it keeps nothing of the turn.
        Raises ContextOverflow or RequestError before anything changes.
        """
        if not isinstance(text, str):
            raise RequestError(f"the message is {safe_repr(text)}: it must be a string")
        messages = [*self.messages, {"role": "user", "content": make_content(text, read_pictures(images))}]
        rendered = self.llm.render(messages)
        ids = self.prompt_ids(rendered)
        generation = self.llm.prepare_generation(ids, check_single(params), self.sequence, continues=False)
        return self._pieces(generation, messages, rendered, ids)

    def prompt_ids(self, rendered: RenderedPrompt) -> list[int]:
        """Return the token ids of a rendered history, reusing the ids in the KV cache for the part already computed.

        They equal a fresh tokenization if that begins with the cached ids. Otherwise, when the model generated a text
        with other tokens than the tokenizer would use, the generated tokens are kept.
        """
        fresh = self.llm.chat_ids(rendered)
        prefix = self._prefixes[-1] if self._prefixes else EMPTY_PREFIX
        if fresh[: len(prefix.ids)] == prefix.ids or not rendered.text.startswith(prefix.text):
            return fresh
        # The fresh ids of the prefix can be replaced only if its text ends between two of them.
        fresh_prefix = self.llm.chat_ids(rendered.up_to(len(prefix.text)))
        if fresh[: len(fresh_prefix)] != fresh_prefix:
            return fresh
        has_images = prefix.image_rows > 0 or isinstance(fresh_prefix, PromptIds)
        if has_images and find_image_ids(prefix.ids) != find_image_ids(fresh_prefix):  # other pictures
            return fresh
        ids = prefix.ids + fresh[len(fresh_prefix) :]
        if not isinstance(fresh, PromptIds):
            return ids
        return _move_images(fresh, ids, len(fresh_prefix), len(prefix.ids)) or fresh

    def fork(self) -> "Conversation":
        """Return a second conversation with the same messages, which shares the KV cache so far."""
        child = Conversation.__new__(Conversation)
        child.llm = self.llm
        child.messages = [dict(message) for message in self.messages]
        child._prefixes = list(self._prefixes)
        child._sequence = self.llm.engine.fork(self.sequence)
        return child

    def revert(self, n: int) -> None:
        """Keep the first n messages (the system message counts) and drop the rest.

        Raises RequestError unless 0 <= n <= the number of messages, or while an answer is being generated.
        """
        if not 0 <= parse_int("the message to revert to", n) <= len(self.messages):
            raise RequestError(f"cannot revert to message {safe_repr(n)}: there are {len(self.messages)} messages")
        self.check_idle()
        del self.messages[n:]
        while self._prefixes and self._prefixes[-1].messages > n:
            self._prefixes.pop()

    def save(self, path: str | Path) -> int:
        """Write the conversation with its KV cache to a file, and return the file's size in bytes.

        `LLM.wake` restores it without recomputing anything. Raises RequestError while an answer is being generated, if
        its pictures have more than 256 MiB, if the file cannot be written, or if it exists and is not a session.
        """
        self.check_idle()
        messages, pictures = detach_pictures(self.messages)
        # "told" is the key of the prefixes in session files.
        notes = {"messages": messages, "told": [list(prefix[:3]) for prefix in self._prefixes]}
        session_path = parse_path("the path of a session", path)
        identity = self.llm.loaded_engine.identity
        return self.llm.engine.save_session(self.sequence, session_path, identity, notes, pictures)

    def sleep(self, path: str | Path) -> int:
        """Save the conversation and close it. If the file cannot be written, the conversation stays open."""
        written = self.save(path)
        self.close()
        return written

    @property
    def is_asleep(self) -> bool:
        """Whether the KV cache was offloaded to `session_dir` because others needed its pages; the next turn restores
        it."""
        return self._sequence is not None and self.llm.is_open and self.llm.engine.kv_cache.is_offloaded(self._sequence)

    @classmethod
    def restore(cls, llm: "LLM", path: Path, *, salt: str = "") -> "Conversation":
        """Restore a conversation that `save` or `sleep` wrote.

        Raises like `Engine.load_session`, and RequestError for one with pictures if the model does not see.
        """
        llm.check_can_generate()
        loaded_engine = llm.loaded_engine
        sequence, notes = llm.engine.load_session(
            path, loaded_engine.identity, salt, legacy_models=[loaded_engine.model_identity.legacy_sha256]
        )
        conversation = cls.__new__(cls)
        conversation.llm = llm
        conversation._sequence = sequence
        try:
            conversation.messages = read_messages(notes, read_attachments(path))
            conversation._prefixes = read_prefixes(notes, len(conversation.messages), llm.config.vocab)
            conversation._check_images(path)
        except (AttributeError, KeyError, TypeError, ValueError):
            llm.engine.drop(sequence)
            raise ModelFileError(f"{path} is not a saved conversation: its notes have another form") from None
        except BaseException:
            llm.engine.drop(sequence)
            raise
        return conversation

    def _check_images(self, path: Path) -> None:
        """Raise RequestError for a session with image rows if the model has no vision tower."""
        if self.llm.can_see:
            return
        if any(prefix.image_rows for prefix in self._prefixes) or find_image_ids(self.sequence.tokens):
            raise RequestError(
                f"{path}: the session has pictures, and {self.llm.config.name} was opened without its vision tower. "
                f"{self.llm.describe_towers()}"
            )

    def close(self) -> None:
        """Free the KV cache; the messages stay readable. Closing twice does nothing."""
        if self._sequence is not None and self.llm.is_open:
            self.check_idle()
            self.llm.engine.drop(self._sequence)
        self._sequence = None

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Conversation cannot be pickled or copied: fork() copies it, save() writes it to a file")

    @property
    def sequence(self) -> KvSequence:
        """The sequence in the engine's KV cache. Raises RequestError after `close`."""
        if self._sequence is None:
            raise RequestError("this conversation was closed: begin a new one")
        return self._sequence

    def check_idle(self) -> None:
        """Raise RequestError while an answer is being generated."""
        if self.llm.engine.scheduler.uses(self.sequence):
            raise RequestError("this conversation is still answering: finish or close that answer first")

    def _pieces(
        self, generation: TextGeneration, messages: list[dict[str, Any]], rendered: RenderedPrompt, ids: list[int]
    ) -> Generator[Piece, None, None]:
        try:
            with closing(self.llm.stream_pieces(generation)) as pieces:
                for piece in pieces:
                    # A failed answer has no text to keep; a cancelled one is kept below.
                    if piece.finish_reason in ("stop", "length"):
                        self.append_answer(generation, messages, rendered, ids)
                    yield piece
        finally:
            if generation.finish_reason == "cancelled" and generation.token_ids and self.llm.is_open:
                self.append_answer(generation, messages, rendered, ids)

    def append_answer(
        self, generation: TextGeneration, messages: list[dict[str, Any]], rendered: RenderedPrompt, ids: list[int]
    ) -> None:
        """Append an answer to the history, with its token ids as far as they stand for exactly its text.

        For callers that run the generation themselves: `messages` are all before the answer, `rendered` is their text,
        and `ids` are its `prompt_ids`, which were continued in this conversation's `sequence`.
        """
        self.messages = [*messages, {"role": "assistant", "content": generation.text}]
        generated_ids = list(generation.token_ids)
        if generated_ids and generated_ids[-1] in generation.request.stop_ids:
            generated_ids.pop()  # the template writes the end of a message itself
        detokenizer = Detokenizer(self.llm.tokenizer, skip_special_tokens=True)
        generated_text = detokenizer.push_all(generated_ids) + detokenizer.flush()
        if generated_text != generation.text:  # cut at a stop string, or inside a character
            generated_ids = []
            generated_text = ""
        image_rows = sum(image.num_rows for image in ids.images) if isinstance(ids, PromptIds) else 0
        prefix_text = rendered.text + generated_text
        self._prefixes.append(RenderedPrefix(len(self.messages), prefix_text, ids + generated_ids, image_rows))
        total_chars = sum(prefix.size for prefix in self._prefixes)
        while total_chars > MAX_PREFIX_CHARS and len(self._prefixes) > 1:
            total_chars -= self._prefixes.pop(0).size


def find_image_ids(ids: Sequence[int]) -> list[int]:
    """Return the ids of image rows among these."""
    return [token for token in ids if is_image_id(token)]


def _move_images(fresh: PromptIds, ids: list[int], fresh_end: int, end: int) -> PromptIds | None:
    """Return a prompt's images at their places in `ids`, which differ from the `fresh` ids before `fresh_end`.

    `ids` from `end` on are the fresh ones from `fresh_end` on; before, they have the same ids of image rows. Between
    images, texts may have another length. None if the rows of an image are not side by side, as a file may claim.
    """
    images = []
    place = 0
    for image in fresh.images:
        if image.start >= fresh_end:
            start = image.start - fresh_end + end
        else:
            start = ids.index(fresh[image.start], place)
            if ids[start : start + image.num_rows] != fresh[image.start : image.stop]:
                return None
        place = start + image.num_rows
        images.append(replace(image, start=start))
    return PromptIds(ids, images)


def read_messages(notes: Mapping[str, Any], pictures: Sequence[bytes] = ()) -> list[dict[str, Any]]:
    """Return the messages in a session's notes. Raises AttributeError, KeyError, TypeError, ValueError if invalid."""
    messages = notes["messages"]
    if not isinstance(messages, list):
        raise TypeError("the messages are a list")
    return attach_pictures(messages, pictures)


def read_prefixes(notes: Mapping[str, Any], num_messages: int, vocab: int) -> list[RenderedPrefix]:
    """Return the rendered prefixes in a session's notes. Raises like `read_messages`."""
    prefixes = []
    previous = 0
    for messages, text, ids in notes["told"]:
        text.encode()
        if not isinstance(ids, list) or not all(type(number) is int for number in (messages, *ids)):
            raise ValueError("a rendered prefix is a count, a text and ids")
        if not previous <= messages <= num_messages or not all(
            0 <= token < vocab or is_image_id(token) for token in ids
        ):
            raise ValueError("counts of messages grow, and ids are in the vocabulary, or of images")
        previous = messages
        prefixes.append(RenderedPrefix(messages, text, ids, len(find_image_ids(ids))))
    return prefixes
