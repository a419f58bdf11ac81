"""Calls as <invoke name="name"><parameter name="key">value</parameter></invoke>, in a section: MiniMax and DeepSeek."""

from collections.abc import Mapping
from typing import Any

from sporelm.text.dialects.dialect import THINK, Thinking
from sporelm.text.dialects.lark_builder import Expression, LarkBuilder
from sporelm.text.dialects.tagged import TEXT, Tagged
from sporelm.text.dialects.tool import add_definitions, find_types, resolve_reference


class MiniMax(Tagged):
    """MiniMax-M2: in <minimax:tool_call>...</minimax:tool_call>."""

    name = "minimax"
    section = ("<minimax:tool_call>", "</minimax:tool_call>")
    opening = ""
    name_open, name_close = '<invoke name="', '">'
    key_open, key_close, value_close = '<parameter name="', '">', "</parameter>"
    end = "</invoke>"
    start_markers = (section[0], name_open)


class Dsml(Tagged):
    """DeepSeek V3.2 and V4: each word after ｜DSML｜, and parameters that say whether they are texts."""

    name = "dsml"
    opening = ""
    name_open, name_close = '<｜DSML｜invoke name="', '">'
    key_open, key_close, value_close = '<｜DSML｜parameter name="', '">', "</｜DSML｜parameter>"
    typed = {'" string="true">': TEXT, '" string="false">': frozenset(("any",))}
    end = "</｜DSML｜invoke>"

    def __init__(self, thinking: Thinking | None = THINK, *, word: str = "tool_calls") -> None:
        """word: the name of the section, "function_calls" in V3.2."""
        super().__init__(thinking)
        self.section = (f"<｜DSML｜{word}>", f"</｜DSML｜{word}>")
        self.start_markers = (self.section[0], self.name_open)

    def build_value(self, lark: LarkBuilder, schema: Any, root: Mapping[str, Any]) -> Expression:
        if find_types(schema, root) == TEXT:
            return lark.sequence('" string="true">', lark.raw_value(schema, root, self.value_close))
        value = lark.json(add_definitions(resolve_reference(schema, root), root))
        return lark.sequence('" string="false">', value, self.value_close)
