"""Hy3: <tool_call>name<tool_sep><arg_key>key</arg_key><arg_value>value</arg_value></tool_call> in <tool_calls>.

Each tag, those of reasoning too, ends in a suffix that the template names, such as <think:opensource>.
"""

import re

from sporelm.text.dialects.dialect import Thinking
from sporelm.text.dialects.tagged import Tagged

SUFFIX = ":opensource"
SEPARATOR = re.compile(r"<tool_sep(\{\}|[\w:.-]{0,64})>")
NAMED = re.compile(r"\bHYTK\s*=\s*['\"]([\w:.-]{0,64})['\"]")


class Hy3(Tagged):
    name = "hy3"

    def __init__(self, thinking: Thinking | None = None, *, suffix: str = SUFFIX) -> None:
        """suffix: of all tags; they name the markers of reasoning too."""
        super().__init__(Thinking(f"<think{suffix}>", f"</think{suffix}>"))
        self.section = (f"<tool_calls{suffix}>", f"</tool_calls{suffix}>")
        self.opening, self.end = f"<tool_call{suffix}>", f"</tool_call{suffix}>"
        self.name_close = f"<tool_sep{suffix}>"
        self.key_open, self.key_close = f"<arg_key{suffix}>", f"</arg_key{suffix}>"
        self.value_open, self.value_close = f"<arg_value{suffix}>", f"</arg_value{suffix}>"
        self.start_markers = (self.section[0], self.opening)

    def supports_reasoning(self, template: str) -> bool:
        """Also one that puts its tags together."""
        return "<think" in template


def find_suffix(source: str) -> str | None:
    """The suffix that a template gives its tags, by a name or in the tags themselves; None if it has no such tags."""
    found = SEPARATOR.search(source) if "<arg_key" in source else None
    if found is None or found[1] != "{}":
        return found[1] if found else None
    named = NAMED.search(source)
    return named[1] if named else SUFFIX
