"""Muse Glimmer: messages with a recipient, <|start|>assistant to=self<|message|>...<|eom|>. The last ends with <|eot|>.

A message to=self is reasoning, one to=user or without a recipient is content; a call is a message to=name with <invoke
name="name"><parameter name="key">value</parameter></invoke> in <function_calls>, each tag in the name space atem.
"""

import re

from sporelm.text.dialects.dialect import ParserState, Thinking
from sporelm.text.dialects.lark_builder import Expression, LarkBuilder
from sporelm.text.dialects.stream_source import Steps
from sporelm.text.dialects.tagged import Tagged

START, MESSAGE, MORE, END = "<|start|>", "<|message|>", "<|eom|>", "<|eot|>"
ENDS = (MORE, END)
NEXT = f"{MORE}{START}assistant"
NAME = re.compile(r"[\w.-]{1,192}")


class Muse(Tagged):
    name = "muse"
    markers = (START, MESSAGE, *ENDS)
    section = ("<atem:function_calls>", "</atem:function_calls>")
    opening = ""
    name_open, name_close = '<atem:invoke name="', '">'
    key_open, key_close, value_close = '<atem:parameter name="', '">', "</atem:parameter>"
    end = "</atem:invoke>"
    start_markers = (section[0], name_open)

    def __init__(self, thinking: Thinking | None = None) -> None:
        super().__init__(None)

    def supports_reasoning(self, template: str) -> bool:
        return "to=self" in template

    def parse(self, state: ParserState, thinks: bool) -> Steps[None]:
        """The prompt ends with <|start|>assistant: the rest of a header comes first."""
        marker = ""
        while True:
            if marker not in ENDS:
                yield from state.attempt(self._header(state), marker)
            found = yield from state.source.until((START, *ENDS, *self.openers(state)), state.writer.content)
            while found in self.start_markers:
                yield from state.attempt(self.parse_call(state, found), found)
                found = yield from state.source.until((START, *ENDS, *self.openers(state)), state.writer.content)
            if found is None:
                return
            marker = found

    def _header(self, state: ParserState) -> Steps[bool]:
        """Parse a header, and a message of reasoning; False if the text is not a header."""
        source = state.source
        yield from source.skip("assistant")
        to = ""
        if (yield from source.skip("to=")):
            to = source.take(len((yield from source.ahead(NAME))))
        if not (yield from source.literal(MESSAGE)):
            return False
        source.release()
        state.writer.block()
        if to != "self":
            state.writer.content("\n\n")  # what is said in two messages is two paragraphs
            return True
        state.writer.begin_reasoning()
        if (yield from source.until((START, *ENDS), state.writer.reasoning)) == START:
            source.back_to(source.hold(len(START)))
            source.release()
        state.writer.block()
        return True

    def wrap_content(self, lark: LarkBuilder, content: Expression) -> Expression:
        return Expression(f"({_thought(lark)})? {lark.sequence(f' to=user{MESSAGE}', content)}")

    def build_calls(self, lark: LarkBuilder) -> Expression:
        begin, end = self.section
        call = lark.each(
            lambda tool: lark.sequence(
                f" to={tool.name}{MESSAGE}{begin}\n", self.build_one_call(lark, tool), f"\n{end}"
            )
        )
        return Expression(f"({_thought(lark)})? {lark.many(call, NEXT)}")


def _thought(lark: LarkBuilder) -> Expression:
    """A message of reasoning, and the beginning of the next one."""
    return lark.sequence(f" to=self{MESSAGE}", lark.text_until(MORE), NEXT.removeprefix(MORE))
