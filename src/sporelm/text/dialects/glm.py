"""GLM 4.5 and later: <tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>."""

from sporelm.text.dialects.tagged import Tagged


class Glm(Tagged):
    name = "glm"
    opening, end = "<tool_call>", "</tool_call>"
    key_open, key_close = "<arg_key>", "</arg_key>"
    value_open, value_close = "<arg_value>", "</arg_value>"
    start_markers = (opening,)
