"""ChatFormat: how one chat is rendered for a model and its answers are parsed. The one place that applies a dialect."""

from collections.abc import Mapping, Sequence
from secrets import token_hex
from typing import Any

from sporelm.api.llm import LLM
from sporelm.api.text_generation import TextGeneration
from sporelm.errors import RequestError
from sporelm.serve.chat.truncated_tool_calls import TruncatedCallFilter
from sporelm.text import Detokenizer, RenderedPrompt
from sporelm.text.dialects import AnswerParser, Dialect, call_grammar, choose_dialect
from sporelm.text.dialects.tool import parse_tools, resolve_tool_choice, select_allowed_tools
from sporelm.text.dialects.tool_prompt import render_with_tools
from sporelm.text.grammar.grammar import Grammar
from sporelm.vision.image_processor import ProcessedImage

PROMPT_END_CHARACTERS = 256  # of a prompt's end in which reasoning may have begun


def answer_text(message: Mapping[str, Any]) -> str:
    """Return the text of an assistant's message that can be continued: "" for another role, or with tool calls."""
    content = message.get("content")
    if message.get("role") != "assistant" or message.get("tool_calls"):
        return ""
    if isinstance(content, list):
        return "".join(part["text"] for part in content if isinstance(part.get("text"), str))
    return content if isinstance(content, str) else ""


def ends_with_answer(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the last message begins an answer, which the APIs of Anthropic and Ollama continue."""
    return bool(messages) and bool(answer_text(messages[-1]))


class ChatFormat:
    """The template and dialect of a model, and the tools that one chat may call."""

    def __init__(
        self, llm: LLM, tools: Sequence[Mapping[str, Any]] | None, tool_choice: Any, *, parallel: bool = True
    ) -> None:
        """`tool_choice` is that of OpenAI's API. Raises RequestError for a model without a template."""
        tools, tool_choice = select_allowed_tools(tools, tool_choice)
        self.llm = llm
        self.tool_choice = tool_choice
        self.parallel = parallel
        self.template = llm.chat_template(tools=bool(tools))
        self.dialect: Dialect = choose_dialect(self.template.source, llm.tokenizer)
        self.tools = list(tools) if tools and tool_choice != "none" else None
        self.prompt_end = ""
        self.has_call_grammar = False  # whether a grammar holds the answers to calls, or to calls or a form
        self.must_call = False  # whether it allows calls alone
        self.is_json = False  # whether that form is JSON

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        pictures: Sequence[ProcessedImage] = (),
        *,
        continue_last: bool = False,
        **variables: Any,
    ) -> RenderedPrompt:
        """Render a chat from which `LLM.take_images` has taken the pictures. With `continue_last` the prompt ends with
        the last message, which is the assistant's.

        Raises RequestError, ModelFileError.
        """
        mark = token_hex(16) if continue_last else ""
        if continue_last:
            messages = [*messages[:-1], {**messages[-1], "content": answer_text(messages[-1]) + mark}]
            variables["add_generation_prompt"] = False
        prompt = render_with_tools(self.template, self.dialect, messages, self.tools, **variables)
        prompt = self.llm.expand_images(prompt, pictures)
        if continue_last:
            end = prompt.text.rfind(mark)
            if end < 0:
                raise RequestError(
                    "this model's template does not render the last message of the assistant: it cannot be continued"
                )
            prompt = prompt.up_to(end)
        self.prompt_end = prompt.text[-PROMPT_END_CHARACTERS:]
        return prompt

    @property
    def supports_reasoning(self) -> bool:
        """Whether the model's template mentions reasoning."""
        return self.dialect.supports_reasoning(self.template.source)

    def answer_grammar(self, content: Grammar | None) -> Grammar | None:
        """Return the grammar of an answer: calls of the tools that must be called, or `content` where it does not call.

        Raises RequestError.
        """
        grammar = call_grammar(
            self.dialect,
            self.tools,
            self.tool_choice,
            self.llm.tokenizer,
            parallel=self.parallel,
            prompt=self.prompt_end,
            content=content,
            thinks=self.supports_reasoning,
        )
        self.has_call_grammar = grammar is not None and bool(self.tools)
        self.must_call = (
            self.has_call_grammar and resolve_tool_choice(parse_tools(self.tools), self.tool_choice) is not None
        )
        self.is_json = content is not None and content.json_schema is not None
        return content if grammar is None else grammar

    def show_delimiters(self, answer: TextGeneration, *, continues: bool) -> None:
        """Make an answer's text include the special tokens that delimit the dialect's calls and reasoning."""
        shown = self.dialect.shown_ids(self.llm.tokenizer)
        if shown:
            answer.detokenizer = Detokenizer(
                self.llm.tokenizer, skip_special_tokens=True, continues=continues, shown=shown
            )

    def parser(self) -> AnswerParser | TruncatedCallFilter:
        """Return a parser for one answer."""
        parser = self.dialect.parser(self.tools, prompt=self.prompt_end)
        if not self.has_call_grammar:
            return parser
        delimiters = self.dialect.all_markers()
        return TruncatedCallFilter(parser, delimiters, must_call=self.must_call, is_json=self.is_json)
