"""Chat templates: messages in, the text that the model expects out, marked by origin."""

import copy
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from sporelm.errors import ModelFileError, RequestError
from sporelm.text.budget import MESSAGE_SECONDS, RENDER_SECONDS, Budget, LimitReached, spending
from sporelm.text.marked_text import MarkedText, marks_of, plain, template_text
from sporelm.text.messages import (
    REASONING,
    check_messages,
    check_tools,
    joined_parts,
    plain_data,
    size_of,
    with_content,
    with_reasoning,
)
from sporelm.text.rendered_prompt import RenderedPrompt, spans_of
from sporelm.text.tokenizer import Tokenizer, one_line

if TYPE_CHECKING:
    from sporelm.text.isolated_process import IsolatedProcess, Subject

MAX_TEMPLATE_CHARACTERS = 256 << 10
PROBE_SECONDS = 1.0  # of CPU, of all trials together that learn a template's habits
# What a rendering may use up in this process where there is another one for longer ones: a chat of 50 messages takes
# 1 to 3 ms, and nothing else of Python runs meanwhile.
BRIEF_SECONDS, BRIEF_WORK = 0.005, 1 << 20
KILL_SHARE, KILL_SECONDS = 1.5, 0.05  # of a rendering's time, and more, after which its process is killed
_PROBE = "a text to be found again"
_NAME = "a_name_to_be_found_again"
_TOOL = {
    "type": "function",
    "function": {"name": _NAME, "description": "", "parameters": {"type": "object", "properties": {}, "required": []}},
}
_CALL = {"id": "abcdefghi", "type": "function", "function": {"name": _NAME, "arguments": {}}}
_RESULT = {"role": "tool", "tool_call_id": "abcdefghi", "name": _NAME, "content": _PROBE}
_FUNCTOOLS = "functools["  # Firefunction: its template has names of its own for the tools and the time
_DATE = "date_string"  # what Llama 3's templates call the day
_THINKING = re.compile(r"(?<![.\w])thinking is (un)?defined")
_USER: dict[str, Any] = {"role": "user", "content": "x"}
# Roles that templates may make part of a control token, as in '<|' + message.role + '|>'. Any other role is content.
TEMPLATE_ROLES = frozenset(
    ("assistant", "context", "developer", "function", "ipython", "model", "observation", "system", "tool", "user")
)


class Chat(NamedTuple):
    """The input of one rendering, as checked plain data."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]]
    add_generation_prompt: bool
    extra: Mapping[str, Any]


class TemplateStopped(ModelFileError):
    """A rendering would have used more than its budget."""


class NeedsIsolation(Exception):
    """A rendering within `at_once` is too long for this thread: repeat it where it may wait for the other process."""


_at_once: ContextVar[bool] = ContextVar("at_once", default=False)
_keys = itertools.count()


@contextmanager
def at_once() -> Iterator[None]:
    """Within this context renderings raise NeedsIsolation instead of waiting for another process."""
    token = _at_once.set(True)
    try:
        yield
    finally:
        _at_once.reset(token)


class ChatTemplate:
    """A model's chat template, compiled once; safe to share between threads.

    It renders as transformers' `apply_chat_template` does. It may be hostile: its time, its output and what it makes
    on the way are bounded, and it reaches nothing outside its arguments.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str] | None = None,
        *,
        label: str = "the chat template",
        dated: bool = False,
    ) -> None:
        """
        source            the template, in jinja2's language
        special_tokens    "bos_token", "eos_token", ... -> text
        label             what messages call it
        dated             offer today's date as `date_string`, as llama.cpp does; transformers leaves it undefined, so
                          that Llama 3's templates name a day of 2024

        Raises ModelFileError for a template that cannot be compiled.
        """
        self.source = source
        self.label = label
        self.dated = dated and _DATE in source
        self._special_tokens = {name: template_text(text) for name, text in (special_tokens or {}).items()}
        self._template = self._compile()
        self.seconds = RENDER_SECONDS
        self._probe_seconds = PROBE_SECONDS  # left
        self._process: IsolatedProcess | None = None
        self._subject: Subject | None = None
        self._brief_below: float = float("inf")  # size of chats that are tried in this process

    @classmethod
    def of(cls, tokenizer: Tokenizer, *, tools: bool = False) -> "ChatTemplate":
        """The template of a tokenizer's model; with `tools`, the one for tools if the model has one. Those used last
        are kept, with what is known of their habits.

        Raises RequestError if the model has none.
        """
        templates = tokenizer.chat_templates
        source = templates.get("tool_use") if tools else None
        source = source or templates.get("default")
        if source is None:
            raise RequestError(
                f"{tokenizer.label} has no chat template; give one as chat_template.jinja in the model's folder or as "
                "tokenizer.chat_template in its GGUF file, or use raw text instead of messages"
            )
        return _kept(source, tuple(sorted(tokenizer.special.names.items())), tokenizer.template_label)

    def within(self, process: "IsolatedProcess | None", seconds: float = RENDER_SECONDS) -> "ChatTemplate":
        """The same template, whose renderings take `seconds` of CPU at most, and MESSAGE_SECONDS for each message; in
        `process`, unless they are brief."""
        from sporelm.text.isolated_process import Subject

        made = copy.copy(self)
        made.seconds, made._process, made._brief_below = seconds, process, float("inf")
        tokens = {name: plain(text) for name, text in self._special_tokens.items()}
        made._subject = Subject(next(_keys), "template", lambda: (self.source, tokens, self.label, self.dated))
        return made

    def learn_habits(self) -> None:
        """Try what the template does with tools, calls and the like, which else the first rendering does."""
        _ = self.takes_tools, self.writes_calls, self.writes_results, self.takes_system
        _ = self._takes_no_content, self._left_out, self._takes_parts

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> RenderedPrompt:
        """The text of a chat, in spans: what the template wrote, and content that was put into it.

        messages                 as `check_messages` describes them
        add_generation_prompt    end with what makes the model answer
        tools                    functions that the model may call, as `check_tools` describes them; none is None
        kwargs                   further variables of the template, plain data (enable_thinking=False)

        Raises RequestError for messages that are malformed or that the template refuses, ModelFileError for a template
        that fails or exceeds its budget.
        """
        given = check_tools(tools) if tools is not None else []
        return self.render_checked(
            check_messages(messages), given, add_generation_prompt=add_generation_prompt, **kwargs
        )

    def render_checked(
        self,
        messages: list[dict[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> RenderedPrompt:
        """`render` of what `check_messages` and `check_tools` gave. Texts in it may be `MarkedText`, whose marks count:
        so a dialect writes calls with its own marks. Raises as that."""
        checked = with_reasoning(messages, self._reasoning_names, self._left_out)
        if any(message.get("content") is None for message in checked) and not self._takes_no_content:
            checked = with_content(checked)
        if any(isinstance(message.get("content"), list) for message in checked) and not self._takes_parts:
            checked = joined_parts(checked)
        extra = {name: plain_data(value, f"the template's variable {name!r}") for name, value in kwargs.items()}
        extra = self._in_its_words(extra)
        return self._run(Chat(checked, list(tools), add_generation_prompt, extra))

    @cached_property
    def takes_tools(self) -> bool:
        """Whether the template tells the model of tools; if not, `render` would leave them out unseen."""
        return _NAME in self._trial([_USER], tools=[_TOOL])

    @cached_property
    def writes_calls(self) -> bool:
        """Whether it writes the calls of earlier answers."""
        told = [_USER, {"role": "assistant", "content": "", "tool_calls": [_CALL]}]
        before = self._trial([_USER], tools=[_TOOL]).count(_NAME)
        return self._trial(told, tools=[_TOOL]).count(_NAME) > before

    @cached_property
    def writes_results(self) -> bool:
        """Whether it writes what calls gave."""
        told = [_USER, {"role": "assistant", "content": "", "tool_calls": [_CALL]}, _RESULT]
        return _PROBE in self._trial(told, tools=[_TOOL])

    @cached_property
    def takes_system(self) -> bool:
        """Whether it writes a message of the system; some templates refuse it, or leave it out."""
        return _PROBE in self._trial([{"role": "system", "content": _PROBE}, _USER])

    @cached_property
    def _takes_no_content(self) -> bool:
        """Whether a message of calls alone may have None as its content, as far as a trial tells."""
        told = [_USER, {"role": "assistant", "content": None, "tool_calls": [_CALL]}]
        for more in ([], [_RESULT]):  # some look at the last message alone in another way
            without = self._trial([*told, *more], tools=[_TOOL])
            if not without or "None" in without:
                return False
        return True

    @cached_property
    def _reasoning_names(self) -> tuple[str, ...]:
        """What the template calls the reasoning of a message."""
        return tuple(name for name in REASONING if re.search(rf"\b{name}\b", self.source))

    @cached_property
    def _left_out(self) -> tuple[str, ...]:
        """The names of reasoning that the template refuses beside content and calls, as gpt-oss's does."""
        said = {"role": "assistant", "content": "x", "tool_calls": [_CALL]}
        if not self._reasoning_names or not self._trial([_USER, said], tools=[_TOOL]):
            return ()
        return tuple(name for name in self._reasoning_names if not self._trial([_USER, said | {name: "x"}], [_TOOL]))

    @cached_property
    def _takes_parts(self) -> bool:
        """Whether the template writes the text of parts itself, rather than failing or printing the list."""
        text = self._trial([{"role": "user", "content": [{"type": "text", "text": _PROBE}]}])
        return _PROBE in text and f"'{_PROBE}'" not in text and f'"{_PROBE}"' not in text

    def _in_its_words(self, given: dict[str, Any]) -> dict[str, Any]:
        """The variables of a request, with what `enable_thinking` wishes under the name that the template has for it:
        `thinking` (DeepSeek, Kimi K3) or `thinking_mode` (MiniMax-M3)."""
        wish = given.get("enable_thinking")
        if not isinstance(wish, bool) or "enable_thinking" in self.source:
            return given
        names: dict[str, Any] = {"thinking": wish} if _THINKING.search(self.source) else {}
        if "thinking_mode" in self.source:
            names["thinking_mode"] = "enabled" if wish else "disabled"
        return {**names, **given}

    def _trial(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """What the template makes of messages, to learn its habits; nothing where it fails or refuses them."""
        if self._probe_seconds <= 0:
            return ""
        try:
            return self._run(Chat(messages, tools, False, {})).text
        except TemplateStopped:
            self._probe_seconds -= self.seconds
            return ""
        except (ModelFileError, RequestError):
            return ""

    def _variables(self, chat: Chat) -> dict[str, Any]:
        """What the template sees, as plain data."""
        own: dict[str, Any] = {}
        if _FUNCTOOLS in self.source:
            from sporelm.text.sandbox import strftime_now

            functions = [tool["function"] for tool in chat.tools]
            own = {"functions": json.dumps(functions, indent=4), "datetime": strftime_now("%Y-%m-%d %H:%M:%S")}
        if self.dated:
            from sporelm.text.sandbox import strftime_now

            own[_DATE] = strftime_now("%d %b %Y")
        return {
            **self._special_tokens,
            "documents": None,
            **own,
            **chat.extra,
            "messages": [_with_marked_role(message) for message in chat.messages],
            "tools": list(chat.tools) or None,
            "add_generation_prompt": chat.add_generation_prompt,
        }

    def _compile(self) -> Any:
        from sporelm.text.sandbox import ChatEnvironment

        if len(self.source) > MAX_TEMPLATE_CHARACTERS:
            raise ModelFileError(
                f"{self.label} has {len(self.source)} characters, more than the {MAX_TEMPLATE_CHARACTERS} allowed"
            )
        try:
            return ChatEnvironment().from_string(self.source)
        except (RecursionError, MemoryError):
            raise ModelFileError(f"{self.label} nests too deeply") from None
        except Exception as error:
            line = getattr(error, "lineno", None)
            place = f", line {line}" if line else ""
            raise ModelFileError(f"{self.label} is malformed{place}: {one_line(error)}") from None

    def _run(self, chat: Chat) -> RenderedPrompt:
        """Render a chat: in this process, as far as a brief budget goes if there is another one, else there."""
        if self._process is None:
            return self.render_here(chat, self.seconds)
        size = size_of([*chat.messages, *chat.tools, chat.extra])
        if size < self._brief_below:
            try:
                return self._render(self._variables(chat), Budget(size, BRIEF_SECONDS, BRIEF_WORK))
            except LimitReached:
                self._brief_below = size // 2
        if _at_once.get():
            raise NeedsIsolation
        return self._render_there(chat, size)

    def _render_there(self, chat: Chat, size: int) -> RenderedPrompt:
        """Render a chat in the other process."""
        from sporelm.text.isolated_process import OverBudget, ProcessDied

        assert self._process is not None
        assert self._subject is not None
        most = KILL_SHARE * (self.seconds + MESSAGE_SECONDS * len(chat.messages)) + KILL_SECONDS
        try:
            spans, stopped, used = self._process.run(self._subject, (self.seconds, *sendable(list(chat))), most)
        except OverBudget:
            raise TemplateStopped(
                f"{self.label} was stopped: it takes more than {self.seconds:g} s of CPU time"
            ) from None
        except ProcessDied as reason:
            raise TemplateStopped(
                f"{self.label} was stopped: its process ended ({reason}), most likely for lack of memory"
            ) from None
        if stopped:
            raise TemplateStopped(stopped)
        if used < BRIEF_SECONDS / 2:  # it was the moment that was slow, not the chat
            self._brief_below = max(self._brief_below, 2 * size)
        return RenderedPrompt(tuple((str(text), bool(own)) for text, own in spans))

    def render_here(self, chat: Chat, seconds: float) -> RenderedPrompt:
        """Render a chat in this process, in `seconds` of CPU and MESSAGE_SECONDS for each message at most."""
        size = size_of([*chat.messages, *chat.tools, chat.extra])
        budget = Budget(size, seconds, allowance=MESSAGE_SECONDS * len(chat.messages))
        try:
            return self._render(self._variables(chat), budget)
        except LimitReached as error:
            raise TemplateStopped(f"{self.label} was stopped: {one_line(error)}") from None

    def _render(self, variables: dict[str, Any], budget: Budget) -> RenderedPrompt:
        """Render within a budget. Raises LimitReached, and as `render`."""
        from sporelm.text.sandbox import RefusedByTemplate

        pieces: list[str] = []
        marks: list[bytes] = []
        try:
            with spending(budget):
                for piece in self._template.generate(**variables):
                    budget.emit(len(piece))
                    pieces.append(piece)
                    marks.append(marks_of(piece))
        except LimitReached:
            raise
        except RefusedByTemplate as error:
            raise RequestError(f"{self.label} refuses the messages: {one_line(error)}") from None
        except RecursionError:
            raise TemplateStopped(f"{self.label} was stopped: it calls itself too deeply") from None
        except MemoryError:
            raise TemplateStopped(f"{self.label} was stopped: it needs more memory than is allowed") from None
        except Exception as error:
            # Templates that are for tools alone loop over `tools`, which is None where a request has none.
            without = "" if variables.get("tools") or not _loops_over_tools(self.source) else " without tools"
            raise ModelFileError(f"{self.label} fails{without}: {type(error).__name__}: {one_line(error)}") from None
        return RenderedPrompt(tuple(spans_of("".join(pieces), b"".join(marks))))


def _loops_over_tools(source: str) -> bool:
    return re.search(r"\bin\s+tools\b|\btools\s*[|\[]", source) is not None


def sendable(value: Any) -> Any:
    """Plain data with each `MarkedText` as a tuple of its text and its marks, which no other plain data is."""
    if isinstance(value, MarkedText):
        return plain(value), marks_of(value)
    if isinstance(value, Mapping):
        return {name: sendable(item) for name, item in value.items()}
    return [sendable(item) for item in value] if isinstance(value, list | tuple) else value


def received(value: Any) -> Any:
    """What was made `sendable`."""
    if isinstance(value, tuple):
        return MarkedText(*value)
    if isinstance(value, dict):
        return {name: received(item) for name, item in value.items()}
    return [received(item) for item in value] if isinstance(value, list) else value


def _with_marked_role(message: Mapping[str, Any]) -> dict[str, Any]:
    role = message["role"]
    return {**message, "role": template_text(role) if role in TEMPLATE_ROLES else role}


@lru_cache(maxsize=16)
def _kept(source: str, special_tokens: tuple[tuple[str, str], ...], label: str) -> ChatTemplate:
    return ChatTemplate(source, dict(special_tokens), label=label, dated=True)
