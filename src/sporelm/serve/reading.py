"""How an answer's text is read: the one place where a model's dialect is applied."""

from collections.abc import Mapping, Sequence
from secrets import token_hex
from typing import Any

from sporelm.api.answer import Answer
from sporelm.api.llm import LLM
from sporelm.errors import RequestError
from sporelm.serve.cut_calls import WithoutCutCalls
from sporelm.text import Detokenizer, RenderedPrompt
from sporelm.text.dialects import (
    Arguments,
    CallBegun,
    CallEnded,
    Content,
    Delta,
    Dialect,
    Parser,
    Reasoning,
    Reply,
    call_grammar,
    choose,
)
from sporelm.text.dialects.prompt import check_variables, render_with_tools
from sporelm.text.dialects.tool import allowed, tools_of, wanted
from sporelm.text.grammar import Grammar

__all__ = [
    "Arguments",
    "CallBegun",
    "CallEnded",
    "Content",
    "Delta",
    "Reading",
    "Reasoning",
    "Reply",
    "check_variables",
    "render_with_tools",
    "text_of",
]

SEEN = 256  # characters of a prompt's end in which reasoning may have begun


def text_of(message: Mapping[str, Any]) -> str:
    """What a message of the assistant says that may be gone on with: nothing, if it calls tools."""
    content = message.get("content")
    if message.get("role") != "assistant" or message.get("tool_calls"):
        return ""
    if isinstance(content, list):
        return "".join(part["text"] for part in content if isinstance(part.get("text"), str))
    return content if isinstance(content, str) else ""


class Reading:
    """How the answers to one chat are read: the dialect of the model, and the tools that may be called."""

    def __init__(
        self, llm: LLM, tools: Sequence[Mapping[str, Any]] | None, choice: Any, *, parallel: bool = True
    ) -> None:
        """`choice` is a tool_choice as OpenAI's API has it. Raises RequestError where the model has no template."""
        tools, choice = allowed(tools, choice)
        self.llm, self.choice, self.parallel = llm, choice, parallel
        self.template = llm.chat_template(tools=bool(tools))
        self.dialect: Dialect = choose(self.template.source, llm.tokenizer)
        self.tools = list(tools) if tools and choice != "none" else None
        self.prompt = ""
        # Whether a grammar holds the answers to calls or a form, to calls alone, and whether that form is JSON.
        self.enforced = self.must_call = self.json = False

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, goes_on: bool = False, **variables: Any
    ) -> RenderedPrompt:
        """The text of the chat; if it `goes_on`, it ends where the last message does, which is the assistant's.

        Raises RequestError, ModelFileError.
        """
        mark = token_hex(16) if goes_on else ""
        if goes_on:
            messages = [*messages[:-1], {**messages[-1], "content": text_of(messages[-1]) + mark}]
            variables["add_generation_prompt"] = False
        prompt = render_with_tools(self.template, self.dialect, messages, self.tools, **variables)
        if goes_on:
            end = prompt.text.rfind(mark)
            if end < 0:
                raise RequestError("this model's template does not show what the assistant said last: it cannot go on")
            prompt = prompt.up_to(end)
        self.prompt = prompt.text[-SEEN:]
        return prompt

    @property
    def thinks(self) -> bool:
        """Whether the model's template speaks of reasoning."""
        return self.dialect.reasons_in(self.template.source)

    def constraint(self, content: Grammar | None) -> dict[str, Any]:
        """Fields of `SamplingParams` that hold the answer to the tools that must be called, and to the form that was
        asked for where it does not call. Raises RequestError."""
        form = call_grammar(
            self.dialect,
            self.tools,
            self.choice,
            self.llm.tokenizer,
            parallel=self.parallel,
            prompt=self.prompt,
            content=content,
            thinks=self.thinks,
        )
        self.enforced = form is not None and bool(self.tools)
        self.must_call = self.enforced and wanted(tools_of(self.tools), self.choice) is not None
        self.json = content is not None and content.json_schema is not None
        return {} if form is None else {"grammar": form}

    def show(self, answer: Answer, *, continues: bool) -> None:
        """Have an answer's text show the special tokens that are marks of the dialect."""
        kept = self.dialect.shown_ids(self.llm.tokenizer)
        if kept:
            answer.detokenizer = Detokenizer(
                self.llm.tokenizer, skip_special_tokens=True, continues=continues, shown=kept
            )

    def parser(self) -> Parser | WithoutCutCalls:
        """A parser of one answer."""
        made = self.dialect.parser(self.tools, prompt=self.prompt)
        if not self.enforced:
            return made
        return WithoutCutCalls(made, self.dialect.all_marks(), must_call=self.must_call, json=self.json)
