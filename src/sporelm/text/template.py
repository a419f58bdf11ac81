"""Chat templates: messages in, the text that the model expects out."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from sporelm.errors import ModelFileError, RequestError
from sporelm.text.budget import Budget, LimitReached, spending
from sporelm.text.messages import check_messages, joined_parts, plain_data, size_of
from sporelm.text.tokenizer import Tokenizer, one_line

MAX_TEMPLATE_CHARACTERS = 256 << 10
_PROBE = "a text to be found again"


class ChatTemplate:
    """A model's chat template, compiled once; safe to share between threads.

    It renders as transformers' `apply_chat_template` does. It may be hostile: its time, its output and what it makes
    on the way are bounded, and it reaches nothing outside its arguments.
    """

    def __init__(
        self, source: str, special_tokens: Mapping[str, str] | None = None, *, label: str = "the chat template"
    ) -> None:
        """
        source            the template, in jinja2's language
        special_tokens    "bos_token", "eos_token", ... -> text
        label             what messages call it

        Raises ModelFileError for a template that cannot be compiled.
        """
        self.source = source
        self.label = label
        self._special_tokens = dict(special_tokens or {})
        self._template = self._compile()

    @classmethod
    def of(cls, tokenizer: Tokenizer, *, tools: bool = False) -> "ChatTemplate":
        """The template of a tokenizer's model; with `tools`, the one for tools if the model has one.

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
        return cls(source, tokenizer.special.names, label=f"the chat template of {tokenizer.label}")

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """The text of a chat.

        messages                 as `check_messages` describes them
        add_generation_prompt    end with what makes the model answer
        tools                    JSON schemas of functions that the model may call
        kwargs                   further variables of the template, plain data (enable_thinking=False)

        Raises RequestError for messages that are malformed or that the template refuses, ModelFileError for a template
        that fails or exceeds its budget.
        """
        checked = check_messages(messages)
        if any(isinstance(message.get("content"), list) for message in checked) and not self._takes_parts:
            checked = joined_parts(checked)
        extra = {name: plain_data(value, f"the template's variable {name!r}") for name, value in kwargs.items()}
        given = None if tools is None else plain_data(list(tools), "tools")
        variables = {
            **self._special_tokens,
            "documents": None,
            **extra,
            "messages": checked,
            "tools": given,
            "add_generation_prompt": add_generation_prompt,
        }
        return self._render(variables)

    @cached_property
    def _takes_parts(self) -> bool:
        """Whether the template writes the text of parts itself, rather than failing or printing the list."""
        parts = [{"type": "text", "text": _PROBE}]
        variables = {
            **self._special_tokens,
            "documents": None,
            "messages": [{"role": "user", "content": parts}],
            "tools": None,
            "add_generation_prompt": False,
        }
        try:
            text = self._render(variables)
        except (ModelFileError, RequestError):
            return False
        return _PROBE in text and f"'{_PROBE}'" not in text and f'"{_PROBE}"' not in text

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

    def _render(self, variables: dict[str, Any]) -> str:
        from sporelm.text.sandbox import RefusedByTemplate

        pieces: list[str] = []
        try:
            with spending(Budget(size_of(variables))) as budget:
                for piece in self._template.generate(**variables):
                    budget.emit(len(piece))
                    pieces.append(piece)
        except LimitReached as error:
            raise ModelFileError(f"{self.label} was stopped: {one_line(error)}") from None
        except RefusedByTemplate as error:
            raise RequestError(f"{self.label} refuses the messages: {one_line(error)}") from None
        except (RecursionError, MemoryError):
            raise ModelFileError(f"{self.label} was stopped: it calls itself too deeply") from None
        except Exception as error:
            raise ModelFileError(f"{self.label} fails: {type(error).__name__}: {one_line(error)}") from None
        return "".join(pieces)
