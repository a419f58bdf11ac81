"""MiniCPM 5: <function name="name"><param name="key">value</param></function>, values also as <![CDATA[...]]>."""

from sporelm.text.dialects.tagged import Tagged


class MiniCpm(Tagged):
    name = "minicpm"
    opening = ""
    name_open, name_close = '<function name="', '">'
    key_open, key_close, value_close = '<param name="', '">', "</param>"
    end = "</function>"
    line = ""
    start_markers = (name_open,)
