"""Writes what transformers makes of chat templates. Run it where transformers is installed:

    python tests/data/make_template_goldens.py FOLDER_OF_TEMPLATES [template_goldens_peer.json]

The templates themselves are not stored here, but the hash, the length and the end of each rendering. Of the templates
in llama.cpp's sources only the beginning of the hash is stored.
"""

import datetime
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
NOW = datetime.datetime(2026, 1, 2, 3, 4, 5)
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}

USER = {"role": "user", "content": "Wie heißt du? 你叫什么名字 <b>&amp;</b> 😶‍🌫️"}
SYSTEM = {"role": "system", "content": "  You answer briefly.\n"}
ANSWER = {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nSpore 'lm' \"says\" hi "}
AGAIN = {"role": "user", "content": "And\n\nnow?"}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather at <place>, in °C.",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string", "description": "Where: é"}, "days": {"type": "integer"}},
            "required": ["place"],
        },
    },
}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "call_0001", "type": "function", "function": {"name": "weather", "arguments": {"place": "Zürich"}}}
    ],
}
RESULT = {"role": "tool", "tool_call_id": "call_0001", "name": "weather", "content": '{"celsius": 21.5}'}
CLOCK = {
    "type": "function",
    "function": {"name": "clock", "description": "The time.", "parameters": {"type": "object", "properties": {}}},
}
TWO_CALLS = {
    **CALL,
    "tool_calls": [
        *CALL["tool_calls"],
        {"id": "call_0002", "type": "function", "function": {"name": "clock", "arguments": {}}},
    ],
}
SECOND = {"role": "tool", "tool_call_id": "call_0002", "name": "clock", "content": "12:00"}
THOUGHT = {"reasoning_content": "Hm, Wetter.", "reasoning": "Hm, Wetter.", "thinking": "Hm, Wetter."}

CASES = {
    "user": {"messages": [USER]},
    "system": {"messages": [SYSTEM, USER]},
    "turns": {"messages": [SYSTEM, USER, ANSWER, AGAIN]},
    "finished": {"messages": [USER, ANSWER], "add_generation_prompt": False},
    "not_thinking": {"messages": [USER, ANSWER, AGAIN], "enable_thinking": False},
    "tools": {"messages": [SYSTEM, USER], "tools": [TOOL]},
    "tool_result": {"messages": [USER, CALL, RESULT], "tools": [TOOL]},
    "two_calls": {"messages": [USER, TWO_CALLS, RESULT, SECOND], "tools": [TOOL, CLOCK]},
    "thoughts": {
        "messages": [USER, CALL | THOUGHT, RESULT, {**ANSWER, "content": "Hi", **THOUGHT}, AGAIN],
        "tools": [TOOL],
    },
    "wrong_order": {"messages": [USER, USER, ANSWER, ANSWER]},
    "starts_with_answer": {"messages": [ANSWER, USER]},
    "parts": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "One "}, {"type": "text", "text": "two"}]}]
    },
}


def digest(text: str) -> dict[str, object]:
    """Return the stored fields of a rendering."""
    return {"sha256": hashlib.sha256(text.encode()).hexdigest(), "characters": len(text), "end": text[-24:]}


def short(kept: Any) -> str:
    """Return the short form of a rendering's fields, for files with many renderings."""
    return "error" if kept == "error" else str(kept["sha256"])[:16]


def main(folder: Path, name: str = "template_goldens.json") -> None:
    from transformers.utils import chat_template_utils

    class Fixed(datetime.datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime.datetime:
            return NOW

    chat_template_utils.datetime = Fixed
    goldens: dict[str, dict[str, object]] = {}
    for path in sorted(folder.glob("*.jinja")):
        found = goldens[path.name] = {}
        for number, case in CASES.items():
            arguments = {"add_generation_prompt": True, **SPECIAL, **case}
            messages = arguments.pop("messages")
            try:
                texts, _ = chat_template_utils.render_jinja_template(
                    [messages], chat_template=path.read_text(encoding="utf-8"), **arguments
                )
                found[number] = digest(texts[0])
            except Exception:
                found[number] = "error"
    target, lines = HERE / name, {}
    for key, found in goldens.items():
        lines[key] = found if name == "template_goldens.json" else {case: short(kept) for case, kept in found.items()}
    target.write_text(json.dumps(lines, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    print(target)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
