"""Muse Glimmer: messages to somebody, <|start|>assistant to=self<|message|>...<|eom|>, the last ending with <|eot|>.

What is to=self is reasoning, what is to=user or to nobody is content; a call is a message to=name with <invoke
name="name"><parameter name="key">value</parameter></invoke> in <function_calls>, each tag in the name space atem.
"""

import re

from sporelm.text.dialects.dialect import Thinking, Turn
from sporelm.text.dialects.forms import Expression, Forms
from sporelm.text.dialects.source import Steps
from sporelm.text.dialects.tagged import Tagged

START, MESSAGE, MORE, END = "<|start|>", "<|message|>", "<|eom|>", "<|eot|>"
ENDS = (MORE, END)
NEXT = f"{MORE}{START}assistant"
NAME = re.compile(r"[\w.-]{1,192}")


class Muse(Tagged):
    name = "muse"
    marks = (START, MESSAGE, *ENDS)
    section = ("<atem:function_calls>", "</atem:function_calls>")
    opening = ""
    name_open, name_close = '<atem:invoke name="', '">'
    key_open, key_close, value_close = '<atem:parameter name="', '">', "</atem:parameter>"
    end = "</atem:invoke>"
    begins = (section[0], name_open)

    def __init__(self, thinking: Thinking | None = None) -> None:
        super().__init__(None)

    def reasons_in(self, template: str) -> bool:
        return "to=self" in template

    def steps(self, turn: Turn, thinks: bool) -> Steps[None]:
        """The prompt ends with <|start|>assistant: the rest of a header comes first."""
        mark = ""
        while True:
            if mark not in ENDS:
                yield from turn.attempt(self._header(turn), mark)
            found = yield from turn.source.until((START, *ENDS, *self.openers(turn)), turn.out.content)
            while found in self.begins:
                yield from turn.attempt(self.call(turn, found), found)
                found = yield from turn.source.until((START, *ENDS, *self.openers(turn)), turn.out.content)
            if found is None:
                return
            mark = found

    def _header(self, turn: Turn) -> Steps[bool]:
        """What stands before a message, and a message of reasoning; False if what comes is no header."""
        source = turn.source
        yield from source.skip("assistant")
        to = ""
        if (yield from source.skip("to=")):
            to = source.take(len((yield from source.ahead(NAME))))
        if not (yield from source.literal(MESSAGE)):
            return False
        source.release()
        turn.out.block()
        if to != "self":
            turn.out.content("\n\n")  # what is said in two messages is two paragraphs
            return True
        turn.out.begin_reasoning()
        if (yield from source.until((START, *ENDS), turn.out.reasoning)) == START:
            source.back_to(source.hold(len(START)))
            source.release()
        turn.out.block()
        return True

    def framed(self, forms: Forms, content: Expression) -> Expression:
        return Expression(f"({_thought(forms)})? {forms.sequence(f' to=user{MESSAGE}', content)}")

    def forced(self, forms: Forms) -> Expression:
        begin, end = self.section
        call = forms.each(
            lambda tool: forms.sequence(f" to={tool.name}{MESSAGE}{begin}\n", self.forced_call(forms, tool), f"\n{end}")
        )
        return Expression(f"({_thought(forms)})? {forms.many(call, NEXT)}")


def _thought(forms: Forms) -> Expression:
    """A message of reasoning, and the beginning of the next one."""
    return forms.sequence(f" to=self{MESSAGE}", forms.text_until(MORE), NEXT.removeprefix(MORE))
