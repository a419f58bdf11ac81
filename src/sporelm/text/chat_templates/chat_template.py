"""Chat templates: render messages to the prompt that a model expects, with its characters marked by origin."""

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
from sporelm.text.chat_templates.chat_messages import (
    REASONING_NAMES,
    add_empty_content,
    add_reasoning,
    check_messages,
    check_tools,
    count_images,
    join_parts,
    measure_size,
    to_plain_data,
)
from sporelm.text.chat_templates.marked_text import MarkedText, marks_of, plain, template_text
from sporelm.text.chat_templates.render_budget import (
    MESSAGE_SECONDS,
    RENDER_SECONDS,
    LimitReached,
    RenderBudget,
    use_budget,
)
from sporelm.text.chat_templates.rendered_prompt import RenderedPrompt, spans_of
from sporelm.text.error_summary import summarize_error
from sporelm.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from sporelm.processes.isolated_process import IsolatedProcess, SharedResource

MAX_TEMPLATE_CHARACTERS = 256 << 10
PROBE_SECONDS = 1.0  # of CPU time, for all probes of a template's features together
# The budget of a rendering in this process if there is another one for longer renderings: a chat of 50 messages takes
# 1 to 3 ms, and no other Python code runs meanwhile.
INLINE_SECONDS, INLINE_WORK = 0.005, 1 << 20
# The process is killed after this multiple of a rendering's time, and these seconds more.
KILL_FACTOR, KILL_SECONDS = 1.5, 0.05
_PROBE = "a text to be found again"
_NAME = "a_name_to_be_found_again"
_TOOL = {
    "type": "function",
    "function": {"name": _NAME, "description": "", "parameters": {"type": "object", "properties": {}, "required": []}},
}
_CALL = {"id": "abcdefghi", "type": "function", "function": {"name": _NAME, "arguments": {}}}
_RESULT = {"role": "tool", "tool_call_id": "abcdefghi", "name": _NAME, "content": _PROBE}
_FUNCTOOLS = "functools["  # Firefunction: its template has special variables for the tools and the time
_DATE = "date_string"  # the variable for the day in Llama 3's templates
_THINKING = re.compile(r"(?<![.\w])thinking is (un)?defined")
_USER: dict[str, Any] = {"role": "user", "content": "x"}
# Roles that a template may make part of a control token, as in '<|' + message.role + '|>'. Any other role is content.
TEMPLATE_ROLES = frozenset(
    ("assistant", "context", "developer", "function", "ipython", "model", "observation", "system", "tool", "user")
)


class RenderInput(NamedTuple):
    """The input of one rendering, as checked plain data."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]]
    add_generation_prompt: bool
    extra: Mapping[str, Any]


class TemplateStopped(ModelFileError):
    """A rendering would have used more than its budget."""


class NeedsIsolation(Exception):
    """A rendering in `without_waiting` is too long for this thread: repeat it where it may wait for a process."""


_without_waiting: ContextVar[bool] = ContextVar("without_waiting", default=False)
_keys = itertools.count()


@contextmanager
def without_waiting() -> Iterator[None]:
    """In this context renderings raise NeedsIsolation instead of waiting for another process."""
    token = _without_waiting.set(True)
    try:
        yield
    finally:
        _without_waiting.reset(token)


class ChatTemplate:
    """A model's chat template, compiled once; safe to share between threads.

    It renders as transformers' `apply_chat_template` does. A template may be hostile: its time, its output and its
    intermediate values are limited, and it can access nothing outside its arguments.
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
        label             its name in messages
        dated             offer today's date as `date_string`, as llama.cpp does; transformers leaves it undefined, so
                          that Llama 3's templates name a day of 2024

        Raises ModelFileError for a template that cannot be compiled.
        """
        self.source = source
        self.label = label
        self.dated = dated and _DATE in source
        self._special_tokens = {name: template_text(text) for name, text in (special_tokens or {}).items()}
        self._template = self._compile()
        self.image_placeholder = ""  # the template's text for a picture; "": the model does not see
        self.image_text = template_text("")  # what stands for a picture where the template does not write it
        self.seconds = RENDER_SECONDS
        self._probe_seconds = PROBE_SECONDS  # remaining
        self._process: IsolatedProcess | None = None
        self._resource: SharedResource | None = None
        self._max_inline_size: float = float("inf")  # smaller chats are first rendered in this process

    @classmethod
    def of(cls, tokenizer: Tokenizer, *, tools: bool = False) -> "ChatTemplate":
        """Return the template of a tokenizer's model; with `tools`, the one for tools if the model has one. Recently
        used templates are cached, with their probed features.

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
        return _get_template(source, tuple(sorted(tokenizer.special.names.items())), tokenizer.template_label)

    def with_process(self, process: "IsolatedProcess | None", seconds: float = RENDER_SECONDS) -> "ChatTemplate":
        """Return the same template with a limit of `seconds` of CPU time for a rendering, and MESSAGE_SECONDS for each
        message. Renderings that are not short run in `process`."""
        from sporelm.processes.isolated_process import SharedResource

        template = copy.copy(self)
        template.seconds = seconds
        template._process = process
        template._max_inline_size = float("inf")
        tokens = {name: plain(text) for name, text in self._special_tokens.items()}
        data = (self.source, tokens, self.label, self.dated)
        template._resource = SharedResource(next(_keys), "sporelm.text.isolated_jobs:load_template", lambda: data)
        return template

    def with_images(self, placeholder: str, text: str = "") -> "ChatTemplate":
        """Return the same template for a vision model.

        placeholder   the text by which the template stands for a picture
        text          stands for a picture in a message if the template does not render pictures; "": the placeholder
        """
        template = copy.copy(self)
        template.image_placeholder = placeholder
        template.image_text = template_text(text or placeholder)
        return template

    def probe_features(self) -> None:
        """Probe the template's support of tools, calls and so on, which the first rendering would do otherwise."""
        _ = self.supports_tools, self.renders_tool_calls, self.renders_tool_results, self.supports_system_role
        _ = self._supports_no_content, self._rejected_reasoning_names, self._supports_parts

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> RenderedPrompt:
        """Return the rendered chat in spans: template text, and the content that it contains.

        messages                 as `check_messages` describes them
        add_generation_prompt    end with the generation prompt, which makes the model answer
        tools                    functions that the model may call, as `check_tools` describes them, or None
        kwargs                   further variables of the template, plain data (enable_thinking=False)

        Raises RequestError for messages that are malformed or that the template refuses, ModelFileError for a template
        that fails or exceeds its budget.
        """
        checked_tools = check_tools(tools) if tools is not None else []
        return self.render_checked(
            check_messages(messages), checked_tools, add_generation_prompt=add_generation_prompt, **kwargs
        )

    def render_checked(
        self,
        messages: list[dict[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> RenderedPrompt:
        """Render the results of `check_messages` and `check_tools`. Texts in them may be `MarkedText`, whose marks are
        kept: a dialect writes the markers of calls as template text. Raises as `render`."""
        checked = add_reasoning(messages, self._reasoning_names, self._rejected_reasoning_names)
        if any(message.get("content") is None for message in checked) and not self._supports_no_content:
            checked = add_empty_content(checked)
        num_images = count_images(checked)
        if num_images and not self.image_placeholder:
            raise RequestError(f"image: {self.label} belongs to a model that does not see. Leave pictures out.")
        extra = {name: to_plain_data(value, f"the template's variable {name!r}") for name, value in kwargs.items()}
        extra = self._translate_thinking(extra)
        if any(isinstance(message.get("content"), list) for message in checked):
            if self._supports_parts:
                rendered = self._run(RenderInput(checked, list(tools), add_generation_prompt, extra))
                if rendered.count_template_text(self.image_placeholder) == num_images:
                    return rendered
            checked = join_parts(checked, self.image_text)
        return self._run(RenderInput(checked, list(tools), add_generation_prompt, extra))

    @cached_property
    def supports_tools(self) -> bool:
        """Whether the template renders tools; if not, `render` would silently omit them."""
        return _NAME in self._probe([_USER], tools=[_TOOL])

    @cached_property
    def renders_tool_calls(self) -> bool:
        """Whether the template renders the tool calls of earlier answers."""
        messages = [_USER, {"role": "assistant", "content": "", "tool_calls": [_CALL]}]
        without_calls = self._probe([_USER], tools=[_TOOL]).count(_NAME)
        return self._probe(messages, tools=[_TOOL]).count(_NAME) > without_calls

    @cached_property
    def renders_tool_results(self) -> bool:
        """Whether the template renders the results of tool calls."""
        messages = [_USER, {"role": "assistant", "content": "", "tool_calls": [_CALL]}, _RESULT]
        return _PROBE in self._probe(messages, tools=[_TOOL])

    @cached_property
    def supports_system_role(self) -> bool:
        """Whether the template renders system messages; some templates refuse or omit them."""
        return _PROBE in self._probe([{"role": "system", "content": _PROBE}, _USER])

    @cached_property
    def _supports_no_content(self) -> bool:
        """Whether a message with only tool calls may have None as its content, as far as a probe shows."""
        messages = [_USER, {"role": "assistant", "content": None, "tool_calls": [_CALL]}]
        for following in ([], [_RESULT]):  # some templates treat the last message differently
            text = self._probe([*messages, *following], tools=[_TOOL])
            if not text or "None" in text:
                return False
        return True

    @cached_property
    def _reasoning_names(self) -> tuple[str, ...]:
        """The names of a message's reasoning that the template uses."""
        return tuple(name for name in REASONING_NAMES if re.search(rf"\b{name}\b", self.source))

    @cached_property
    def _rejected_reasoning_names(self) -> tuple[str, ...]:
        """The names of reasoning that the template refuses beside content and calls, as gpt-oss's does."""
        answer = {"role": "assistant", "content": "x", "tool_calls": [_CALL]}
        if not self._reasoning_names or not self._probe([_USER, answer], tools=[_TOOL]):
            return ()
        return tuple(name for name in self._reasoning_names if not self._probe([_USER, answer | {name: "x"}], [_TOOL]))

    @cached_property
    def _supports_parts(self) -> bool:
        """Whether the template renders the text of parts itself, rather than failing or printing the list."""
        text = self._probe([{"role": "user", "content": [{"type": "text", "text": _PROBE}]}])
        return _PROBE in text and f"'{_PROBE}'" not in text and f'"{_PROBE}"' not in text

    def _translate_thinking(self, variables: dict[str, Any]) -> dict[str, Any]:
        """Return the variables of a request, with `enable_thinking` under the name that the template has for it:
        `thinking` (DeepSeek, Kimi K3) or `thinking_mode` (MiniMax-M3)."""
        enable = variables.get("enable_thinking")
        if not isinstance(enable, bool) or "enable_thinking" in self.source:
            return variables
        translated: dict[str, Any] = {"thinking": enable} if _THINKING.search(self.source) else {}
        if "thinking_mode" in self.source:
            translated["thinking_mode"] = "enabled" if enable else "disabled"
        return {**translated, **variables}

    def _probe(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """Return the rendering of messages, to detect features; empty if the template fails or refuses them."""
        if self._probe_seconds <= 0:
            return ""
        try:
            return self._run(RenderInput(messages, tools, False, {})).text
        except TemplateStopped:
            self._probe_seconds -= self.seconds
            return ""
        except (ModelFileError, RequestError):
            return ""

    def _make_variables(self, chat: RenderInput) -> dict[str, Any]:
        """Return the variables of the template, as plain data."""
        special_variables: dict[str, Any] = {}
        if _FUNCTOOLS in self.source:
            from sporelm.text.chat_templates.template_sandbox import strftime_now

            functions = [tool["function"] for tool in chat.tools]
            special_variables = {
                "functions": json.dumps(functions, indent=4),
                "datetime": strftime_now("%Y-%m-%d %H:%M:%S"),
            }
        if self.dated:
            from sporelm.text.chat_templates.template_sandbox import strftime_now

            special_variables[_DATE] = strftime_now("%d %b %Y")
        return {
            **self._special_tokens,
            "documents": None,
            **special_variables,
            **chat.extra,
            "messages": [_mark_role(message) for message in chat.messages],
            "tools": list(chat.tools) or None,
            "add_generation_prompt": chat.add_generation_prompt,
        }

    def _compile(self) -> Any:
        from sporelm.text.chat_templates.template_sandbox import ChatEnvironment

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
            position = f", line {line}" if line else ""
            raise ModelFileError(f"{self.label} is malformed{position}: {summarize_error(error)}") from None

    def _run(self, chat: RenderInput) -> RenderedPrompt:
        """Render a chat: in this process within a small budget, and in the isolated one, if there is one, beyond it."""
        if self._process is None:
            return self.render_locally(chat, self.seconds)
        size = measure_size([*chat.messages, *chat.tools, chat.extra])
        if size < self._max_inline_size:
            try:
                return self._render(self._make_variables(chat), RenderBudget(size, INLINE_SECONDS, INLINE_WORK))
            except LimitReached:
                self._max_inline_size = size // 2
        if _without_waiting.get():
            raise NeedsIsolation
        return self._render_isolated(chat, size)

    def _render_isolated(self, chat: RenderInput, size: int) -> RenderedPrompt:
        """Render a chat in the isolated process."""
        from sporelm.processes.isolated_process import OverBudget, ProcessDied

        assert self._process is not None
        assert self._resource is not None
        kill_seconds = KILL_FACTOR * (self.seconds + MESSAGE_SECONDS * len(chat.messages)) + KILL_SECONDS
        arguments = (self.seconds, *pack_marked(list(chat)))
        try:
            spans, stop_reason, used_seconds = self._process.run(self._resource, arguments, kill_seconds)
        except OverBudget:
            raise TemplateStopped(
                f"{self.label} was stopped: it takes more than {self.seconds:g} s of CPU time"
            ) from None
        except ProcessDied as reason:
            raise TemplateStopped(
                f"{self.label} was stopped: its process ended ({reason}), most likely for lack of memory"
            ) from None
        if stop_reason:
            raise TemplateStopped(stop_reason)
        if used_seconds < INLINE_SECONDS / 2:  # the machine was slow at that moment, not the chat
            self._max_inline_size = max(self._max_inline_size, 2 * size)
        return RenderedPrompt(tuple((str(text), bool(is_template)) for text, is_template in spans))

    def render_locally(self, chat: RenderInput, seconds: float) -> RenderedPrompt:
        """Render a chat in this process, within `seconds` of CPU time and MESSAGE_SECONDS for each message."""
        size = measure_size([*chat.messages, *chat.tools, chat.extra])
        budget = RenderBudget(size, seconds, allowance=MESSAGE_SECONDS * len(chat.messages))
        try:
            return self._render(self._make_variables(chat), budget)
        except LimitReached as error:
            raise TemplateStopped(f"{self.label} was stopped: {summarize_error(error)}") from None

    def _render(self, variables: dict[str, Any], budget: RenderBudget) -> RenderedPrompt:
        """Render within a budget. Raises LimitReached, and as `render`."""
        from sporelm.text.chat_templates.template_sandbox import RefusedByTemplate

        pieces: list[str] = []
        marks: list[bytes] = []
        try:
            with use_budget(budget):
                for piece in self._template.generate(**variables):
                    budget.emit(len(piece))
                    pieces.append(piece)
                    marks.append(marks_of(piece))
        except LimitReached:
            raise
        except RefusedByTemplate as error:
            raise RequestError(f"{self.label} refuses the messages: {summarize_error(error)}") from None
        except RecursionError:
            raise TemplateStopped(f"{self.label} was stopped: its recursion is too deep") from None
        except MemoryError:
            raise TemplateStopped(f"{self.label} was stopped: it needs more memory than is allowed") from None
        except Exception as error:
            # Templates for tools only loop over `tools`, which is None if a request has none.
            without = "" if variables.get("tools") or not _loops_over_tools(self.source) else " without tools"
            raise ModelFileError(
                f"{self.label} fails{without}: {type(error).__name__}: {summarize_error(error)}"
            ) from None
        return RenderedPrompt(tuple(spans_of("".join(pieces), b"".join(marks))))


def _loops_over_tools(source: str) -> bool:
    return re.search(r"\bin\s+tools\b|\btools\s*[|\[]", source) is not None


def pack_marked(value: Any) -> Any:
    """Return plain data with each `MarkedText` as a tuple of its text and its marks; no other value is a tuple."""
    if isinstance(value, MarkedText):
        return plain(value), marks_of(value)
    if isinstance(value, Mapping):
        return {name: pack_marked(item) for name, item in value.items()}
    return [pack_marked(item) for item in value] if isinstance(value, list | tuple) else value


def unpack_marked(value: Any) -> Any:
    """Return the inverse of `pack_marked`."""
    if isinstance(value, tuple):
        return MarkedText(*value)
    if isinstance(value, dict):
        return {name: unpack_marked(item) for name, item in value.items()}
    return [unpack_marked(item) for item in value] if isinstance(value, list) else value


def _mark_role(message: Mapping[str, Any]) -> dict[str, Any]:
    role = message["role"]
    return {**message, "role": template_text(role) if role in TEMPLATE_ROLES else role}


@lru_cache(maxsize=16)
def _get_template(source: str, special_tokens: tuple[tuple[str, str], ...], label: str) -> ChatTemplate:
    return ChatTemplate(source, dict(special_tokens), label=label, dated=True)
