"""Qwen3-Coder, Qwen3.5 and Nemotron 3. Qwen 2.5 and Qwen3 call tools as Hermes does (hermes.py).

<tool_call><function=name><parameter=key>value</parameter></function></tool_call>, each tag in a line of its own.
"""

from sporelm.text.dialects.dialect import Thinking
from sporelm.text.dialects.tagged import Tagged

SEED_THINK = Thinking("<seed:think>", "</seed:think>", anywhere=True)


class QwenCoder(Tagged):
    name = "qwen_coder"
    opening, closing = "<tool_call>", "</tool_call>"  # Seed-OSS has other ones
    name_open, name_close = "<function=", ">"
    key_open, key_close, value_close = "<parameter=", ">", "</parameter>"
    end = "</function>"
    lines = True
    start_markers = (opening, name_open)


class Seed(QwenCoder):
    """Seed-OSS: the same between tags of its own."""

    name = "seed"
    opening, closing = "<seed:tool_call>", "</seed:tool_call>"
    start_markers = (opening, QwenCoder.name_open)

    def __init__(self, thinking: Thinking | None = SEED_THINK) -> None:
        super().__init__(thinking)
