"""A conversation: messages, and the keys and values of what was said, so that a turn costs only its own tokens."""

from collections.abc import Generator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from sporelm.api.answer import Answer
from sporelm.api.completion import Piece
from sporelm.api.params import SamplingParams, single
from sporelm.api.paths import path_of
from sporelm.engine import KvSequence
from sporelm.engine.request import whole_number
from sporelm.errors import ModelFileError, RequestError, shown
from sporelm.text import Detokenizer, RenderedPrompt

if TYPE_CHECKING:
    from sporelm.api.llm import LLM


MOST_TOLD = 1 << 21  # characters of renderings that are kept, each of which has all that was said before it


class Told(NamedTuple):
    """A beginning of the rendered history: its text, the ids that stand for it, and how many messages it holds."""

    messages: int
    text: str
    ids: list[int]


NOTHING = Told(0, "", [])


class Conversation:
    """Made by `LLM.conversation`. Messages are dicts {"role", "content"}; the system message, if any, is the first."""

    def __init__(self, llm: "LLM", system: str | None = None, *, salt: str = "") -> None:
        """What it computes is found by others of the same `salt` alone. Raises RequestError."""
        if system is not None and not isinstance(system, str):
            raise RequestError(f"the system message is {shown(system)}: it must be a text, or None")
        llm.check_generates()
        self.llm = llm
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
        self._told: list[Told] = []  # after each answer, the latest last; of long dialogs only the later ones
        self._sequence: KvSequence | None = llm.engine.sequence(salt)

    def ask(self, text: str, params: SamplingParams | None = None) -> Generator[Piece, None, None]:
        """Say `text` and yield the answer piece by piece. Both join the messages when the answer begins.

        Closing the iterator early keeps what was answered so far; before the answer begins, nothing of the turn. Raises
        ContextOverflow, RequestError before anything is changed.
        """
        if not isinstance(text, str):
            raise RequestError(f"what is said is {shown(text)}: it must be a text")
        messages = [*self.messages, {"role": "user", "content": text}]
        rendered = self.llm.render(messages)
        ids = self.ids_of(rendered)
        answer = self.llm.answer(ids, single(params), self.sequence, continues=False)
        return self._pieces(answer, messages, rendered, ids)

    def ids_of(self, rendered: RenderedPrompt) -> list[int]:
        """The ids of a rendered history: those that were used and generated so far, and new ones for the rest.

        They are those of a fresh rendering wherever it begins with them. Where it does not, because the model put an
        answer together from other tokens than the tokenizer would, the tokens of the answer stay as they are.
        """
        fresh = self.llm.chat_ids(rendered)
        told = self._told[-1] if self._told else NOTHING
        if fresh[: len(told.ids)] == told.ids or not rendered.text.startswith(told.text):
            return fresh
        # How much of the fresh ids stands for the same text? Only if it ends between two tokens can it be exchanged.
        same = self.llm.chat_ids(rendered.up_to(len(told.text)))
        if fresh[: len(same)] != same:
            return fresh
        return told.ids + fresh[len(same) :]

    def fork(self) -> "Conversation":
        """A second conversation that begins with the same messages; it shares the keys and values held so far."""
        twin = Conversation.__new__(Conversation)
        twin.llm = self.llm
        twin.messages = [dict(message) for message in self.messages]
        twin._told = list(self._told)
        twin._sequence = self.llm.engine.fork(self.sequence)
        return twin

    def revert(self, n: int) -> None:
        """Keep the first n messages (the system message counts) and forget the rest.

        Raises RequestError unless 0 <= n <= the number of messages, or while an answer is being made.
        """
        if not 0 <= whole_number("the message to revert to", n) <= len(self.messages):
            raise RequestError(f"cannot revert to message {shown(n)}: there are {len(self.messages)} messages")
        self.check_idle()
        del self.messages[n:]
        while self._told and self._told[-1].messages > n:
            self._told.pop()

    def save(self, path: str | Path) -> int:
        """Write the conversation to a file, keys and values too; the file's bytes.

        `LLM.wake` goes on from there, without computing anything again. Raises RequestError while an answer is being
        made, if the file cannot be written, or if there is one already that is no session.
        """
        self.check_idle()
        notes = {"messages": self.messages, "told": [list(told) for told in self._told]}
        place = path_of("the path of a session", path)
        return self.llm.engine.sleep(self.sequence, place, self.llm.opened.identity, notes)

    def sleep(self, path: str | Path) -> int:
        """`save`, and close the conversation. Where the file cannot be written it stays as it was."""
        written = self.save(path)
        self.close()
        return written

    @property
    def is_asleep(self) -> bool:
        """Whether others needed its pages, and it sleeps in the folder for that until the next turn."""
        return self._sequence is not None and self.llm.is_open and self.llm.engine.store.sleeps(self._sequence)

    @classmethod
    def woken(cls, llm: "LLM", path: Path, *, salt: str = "") -> "Conversation":
        """What `sleep` wrote. Raises as `Engine.wake`."""
        llm.check_generates()
        sequence, notes = llm.engine.wake(path, llm.opened.identity, salt)
        made = cls.__new__(cls)
        made.llm, made._sequence = llm, sequence
        try:
            made.messages = messages_of(notes)
            made._told = told_of(notes, len(made.messages), llm.config.vocab)
        except (AttributeError, KeyError, TypeError, ValueError):
            llm.engine.drop(sequence)
            raise ModelFileError(f"{path} holds no conversation: its notes are not what sleeping writes") from None
        return made

    def close(self) -> None:
        """Forget the keys and values; the messages stay readable. Closing again does nothing."""
        if self._sequence is not None and self.llm.is_open:
            self.check_idle()
            self.llm.engine.drop(self._sequence)
        self._sequence = None

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Conversation cannot be pickled or copied: fork() copies it, save() writes it to a file")

    @property
    def sequence(self) -> KvSequence:
        if self._sequence is None:
            raise RequestError("this conversation was closed: begin a new one")
        return self._sequence

    def check_idle(self) -> None:
        """Raise RequestError while an answer is being made."""
        if self.llm.engine.scheduler.uses(self.sequence):
            raise RequestError("this conversation is still answering: finish or close that answer first")

    def _pieces(
        self, answer: Answer, messages: list[dict[str, Any]], rendered: RenderedPrompt, ids: list[int]
    ) -> Generator[Piece, None, None]:
        try:
            with closing(self.llm.pieces(answer)) as pieces:
                for piece in pieces:
                    # A failed answer says nothing that could be kept; a cancelled one is kept below.
                    if piece.finish_reason in ("stop", "length"):
                        self.keep(answer, messages, rendered, ids)
                    yield piece
        finally:
            if answer.finish_reason == "cancelled" and answer.token_ids and self.llm.is_open:
                self.keep(answer, messages, rendered, ids)

    def keep(self, answer: Answer, messages: list[dict[str, Any]], rendered: RenderedPrompt, ids: list[int]) -> None:
        """Take an answer into the history, with its ids as far as they stand for exactly its text.

        For those who have answers made themselves: `messages` are all up to the answer, `rendered` is their text, and
        `ids`, which `ids_of` gave for it, were continued in this conversation's `sequence`.
        """
        self.messages = [*messages, {"role": "assistant", "content": answer.text}]
        generated = list(answer.token_ids)
        if generated and generated[-1] in answer.request.stop_ids:
            generated.pop()  # the template writes the end of a message itself
        reader = Detokenizer(self.llm.tokenizer, skip_special_tokens=True)
        said = reader.push_all(generated) + reader.flush()
        if said != answer.text:  # cut at a stop string, or inside a character
            generated, said = [], ""
        self._told.append(Told(len(self.messages), rendered.text + said, ids + generated))
        held = sum(len(told.text) for told in self._told)
        while held > MOST_TOLD and len(self._told) > 1:
            held -= len(self._told.pop(0).text)


def messages_of(notes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages in a session's notes. Raises AttributeError, KeyError, TypeError or ValueError if they are none."""
    messages = notes["messages"]
    if not isinstance(messages, list):
        raise TypeError("the messages are a list")
    for message in messages:
        message["role"].encode()  # text, and no half of a character
        message["content"].encode()
    return [dict(message) for message in messages]


def told_of(notes: Mapping[str, Any], num_messages: int, vocab: int) -> list[Told]:
    """What was rendered so far, in a session's notes. Raises as `messages_of`."""
    found = []
    before = 0
    for messages, text, ids in notes["told"]:
        text.encode()
        if not isinstance(ids, list) or not all(type(number) is int for number in (messages, *ids)):
            raise ValueError("a rendered history is a count, a text and ids")
        if not before <= messages <= num_messages or any(not 0 <= token < vocab for token in ids):
            raise ValueError("counts of messages grow, and ids are those of the model")
        before = messages
        found.append(Told(messages, text, ids))
    return found
