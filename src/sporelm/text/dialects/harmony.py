"""gpt-oss: messages with a header each, <|channel|>analysis<|message|>...<|end|><|start|>assistant...

analysis is reasoning; final, and commentary to nobody, are content; what is to=functions.name is a call whose body is
the arguments. The recipient stands before or after the channel. A call ends with <|call|>, the answer with <|return|>.
What the model writes to tools of its own (to=python) is reasoning: nobody runs them.
"""

import re

from sporelm.text.dialects.dialect import Dialect, Turn
from sporelm.text.dialects.forms import Expression, Forms
from sporelm.text.dialects.json_call import object_arguments
from sporelm.text.dialects.source import Steps

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>")
LONGEST_HEADER = 512
_WORDS = re.compile(rf"[\w\s=.:/-]{{0,{LONGEST_HEADER}}}")
_TO = re.compile(r"\bto=([\w.-]+)")
_CHANNEL = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")


class Harmony(Dialect):
    name = "harmony"
    marks = (START, CHANNEL, MESSAGE, CONSTRAIN, *ENDS)

    def __init__(self) -> None:
        super().__init__(None)

    def reasons_in(self, template: str) -> bool:
        return "analysis" in template

    def steps(self, turn: Turn, thinks: bool) -> Steps[None]:
        """The prompt ends with <|start|>assistant: the rest of a header comes first."""
        source, mark = turn.source, ""
        while True:
            if mark not in ENDS:
                yield from turn.attempt(self._message(turn), mark)
            found = yield from source.until((START, CHANNEL, *ENDS), turn.out.content)
            if found is None:
                return
            mark = found
            if mark == CHANNEL:
                source.back_to(source.hold(len(mark)))
                mark = ""

    def _message(self, turn: Turn) -> Steps[bool]:
        """A header and, but for content, its message; False if what comes is no header."""
        source = turn.source
        header = yield from self._header(turn)
        if header is None:
            return False
        source.release()
        turn.out.block()
        channel, to = _CHANNEL.search(header), _TO.search(header)
        name = to[1].removeprefix("functions.") if to else ""
        if name and turn.tools and (name in turn.tools or (to and to[1] != name)):
            if not (yield from object_arguments(turn, name)):
                turn.out.content("\n\n")
        elif (to and to[1] == name) or (channel and channel[1] == "analysis"):
            turn.out.begin_reasoning()
            if (yield from source.until((START, *ENDS), turn.out.reasoning)) == START:
                source.back_to(source.hold(len(START)))
                source.release()
            turn.out.block()
        else:
            turn.out.content("\n\n")  # what is said in two messages is two paragraphs
        return True

    def _header(self, turn: Turn) -> Steps[str | None]:
        """What stands before a message: a role, a recipient and a channel, in some order; None if that is not here."""
        source = turn.source
        yield from source.space()
        part = yield from source.which(("assistant", "to=", CHANNEL, MESSAGE))
        header = part or ""
        while part and part != MESSAGE and len(header) <= LONGEST_HEADER:
            header += source.take(len((yield from source.ahead(_WORDS))))
            part = yield from source.which((MESSAGE, CHANNEL, CONSTRAIN))
            header += part or ""
        return header if part == MESSAGE else None

    def framed(self, forms: Forms, content: Expression) -> Expression:
        return Expression(f"({_thought(forms)})? {forms.sequence(f'{CHANNEL}final{MESSAGE}', content)}")

    def forced(self, forms: Forms) -> Expression:
        call = forms.each(
            lambda tool: forms.sequence(
                f"{CHANNEL}commentary to=functions.{tool.name} {CONSTRAIN}json{MESSAGE}",
                forms.json(forms.schema(tool)),
            )
        )
        return Expression(f"({_thought(forms)})? {call}")


def _thought(forms: Forms) -> Expression:
    """A message of reasoning, and the beginning of the next one."""
    return forms.sequence(f"{CHANNEL}analysis{MESSAGE}", forms.text_until("<|end|>"), f"{START}assistant")
