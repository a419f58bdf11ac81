"""gpt-oss: messages with a header each, <|channel|>analysis<|message|>...<|end|><|start|>assistant...

analysis is reasoning; final, and commentary without a recipient, are content; a message to=functions.name is a call
whose body is the arguments. The recipient stands before or after the channel. A call ends with <|call|>, the answer
with <|return|>. Messages to built-in tools (to=python) are reasoning: they are not run.
"""

import re

from sporelm.text.dialects.dialect import Dialect, ParserState
from sporelm.text.dialects.json_calls import object_arguments
from sporelm.text.dialects.lark_builder import Expression, LarkBuilder
from sporelm.text.dialects.stream_source import Steps

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>")
MAX_HEADER_CHARACTERS = 512
_WORDS = re.compile(rf"[\w\s=.:/-]{{0,{MAX_HEADER_CHARACTERS}}}")
_TO = re.compile(r"\bto=([\w.-]+)")
_CHANNEL = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")


class Harmony(Dialect):
    name = "harmony"
    markers = (START, CHANNEL, MESSAGE, CONSTRAIN, *ENDS)

    def __init__(self) -> None:
        super().__init__(None)

    def supports_reasoning(self, template: str) -> bool:
        return "analysis" in template

    def parse(self, state: ParserState, thinks: bool) -> Steps[None]:
        """The prompt ends with <|start|>assistant: the rest of a header comes first."""
        source, marker = state.source, ""
        while True:
            if marker not in ENDS:
                yield from state.attempt(self._message(state), marker)
            found = yield from source.until((START, CHANNEL, *ENDS), state.writer.content)
            if found is None:
                return
            marker = found
            if marker == CHANNEL:
                source.back_to(source.hold(len(marker)))
                marker = ""

    def _message(self, state: ParserState) -> Steps[bool]:
        """Parse a header and, except for content, its message; False if the text is not a header."""
        source = state.source
        header = yield from self._header(state)
        if header is None:
            return False
        source.release()
        state.writer.block()
        channel, to = _CHANNEL.search(header), _TO.search(header)
        name = to[1].removeprefix("functions.") if to else ""
        if name and state.tools and (name in state.tools or (to and to[1] != name)):
            if not (yield from object_arguments(state, name)):
                state.writer.content("\n\n")
        elif (to and to[1] == name) or (channel and channel[1] == "analysis"):
            state.writer.begin_reasoning()
            if (yield from source.until((START, *ENDS), state.writer.reasoning)) == START:
                source.back_to(source.hold(len(START)))
                source.release()
            state.writer.block()
        else:
            state.writer.content("\n\n")  # what is said in two messages is two paragraphs
        return True

    def _header(self, state: ParserState) -> Steps[str | None]:
        """Parse a header: a role, a recipient and a channel, in some order; None if there is none."""
        source = state.source
        yield from source.space()
        part = yield from source.which(("assistant", "to=", CHANNEL, MESSAGE))
        header = part or ""
        while part and part != MESSAGE and len(header) <= MAX_HEADER_CHARACTERS:
            header += source.take(len((yield from source.ahead(_WORDS))))
            part = yield from source.which((MESSAGE, CHANNEL, CONSTRAIN))
            header += part or ""
        return header if part == MESSAGE else None

    def wrap_content(self, lark: LarkBuilder, content: Expression) -> Expression:
        return Expression(f"({_thought(lark)})? {lark.sequence(f'{CHANNEL}final{MESSAGE}', content)}")

    def build_calls(self, lark: LarkBuilder) -> Expression:
        call = lark.each(
            lambda tool: lark.sequence(
                f"{CHANNEL}commentary to=functions.{tool.name} {CONSTRAIN}json{MESSAGE}",
                lark.json(lark.schema(tool)),
            )
        )
        return Expression(f"({_thought(lark)})? {call}")


def _thought(lark: LarkBuilder) -> Expression:
    """A message of reasoning, and the beginning of the next one."""
    return lark.sequence(f"{CHANNEL}analysis{MESSAGE}", lark.text_until("<|end|>"), f"{START}assistant")
