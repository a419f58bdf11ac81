"""Chat templates by name, for models whose files hold none, or a wrong one: those of llama.cpp's `--chat-template`.

The formats are facts about the models (llama.cpp, `src/llama-chat.cpp`); the templates that write them are ours. BOS is
not part of them: it is put in front where the model's files want it.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path

from sporelm.errors import RequestError, shown
from sporelm.text.tokenizer import Tokenizer

OWN = "default"  # the model's own template
_PLACE = re.compile(r"(\{(?:role|content|trimmed)\})")
_VALUES = {"{role}": "message.role", "{content}": "message.content", "{trimmed}": "message.content | trim"}


def _written(form: str) -> str:
    """Return a form as Jinja; {role}, {content} and {trimmed} in it stand for those of a message."""
    pieces = (_VALUES.get(piece) or json.dumps(piece, ensure_ascii=False) for piece in _PLACE.split(form) if piece)
    return "".join(f"{{{{ {piece} }}}}" for piece in pieces)


def _same(turn: str, end: str, start: str = "") -> str:
    """Return a template that writes every message in the same form, then the beginning of the answer."""
    return _by_role(end, start, other=turn)


def _by_role(end: str, start: str = "", **turns: str) -> str:
    """Return a template with a form for each role, and `other` for all remaining roles."""
    turn = _written(turns.pop("other", ""))
    if turns:
        cases = "{% elif ".join(f'message.role == "{role}" %}}{_written(form)}' for role, form in turns.items())
        turn = f"{{% if {cases}{{% else %}}{turn}{{% endif %}}"
    asked = f"{{% if add_generation_prompt %}}{_written(end)}{{% endif %}}" if end else ""
    return f"{_written(start)}{{% for message in messages %}}{turn}{{% endfor %}}{asked}"


def _mistral(before: str, after: str, said: str) -> str:
    """Return one of Mistral's first formats: a turn begins with [INST] and includes the system message."""
    return (
        "{% set turn = namespace(open=false) %}{% for message in messages %}"
        f"{{% if not turn.open %}}{_written(f'{before}[INST]{after}')}{{% set turn.open = true %}}{{% endif %}}"
        f'{{% if message.role == "system" %}}{_written("{content}" + chr(10) * 2)}'
        f'{{% elif message.role == "user" %}}{_written("{content}" + before + "[/INST]")}'
        f"{{% else %}}{_written(after + said + '</s>')}{{% set turn.open = false %}}{{% endif %}}{{% endfor %}}"
    )


def _llama2(system: str, again: str, content: str = "{content}") -> str:
    """Return Llama 2's formats; the first turn begins with the text, each later one with `again`."""
    return (
        '{% set turn = namespace(open=true) %}{{ "[INST] " }}{% for message in messages %}'
        f"{{% if not turn.open %}}{_written(again)}{{% set turn.open = true %}}{{% endif %}}"
        f'{{% if message.role == "system" %}}{_written(system)}'
        f'{{% elif message.role == "user" %}}{_written(content + " [/INST]")}'
        f"{{% else %}}{_written(content + '</s>')}{{% set turn.open = false %}}{{% endif %}}{{% endfor %}}"
    )


def _merged_system(turn: Callable[[str], str], content: str, end: str) -> str:
    """Return a format without system messages: their text is put before the next user message."""
    system = "{{ system.text }}" + _written("\n\n")
    return (
        '{% set system = namespace(text="") %}{% for message in messages %}{% if message.role == "system" %}'
        f"{{% set system.text = system.text ~ (message.content{content}) %}}{{% else %}}"
        + turn(f'{{% if system.text %}}{system}{{% set system.text = "" %}}{{% endif %}}')
        + "{% endif %}{% endfor %}"
        + (f"{{% if add_generation_prompt %}}{_written(end)}{{% endif %}}" if end else "")
    )


def _gemma_turn(system: str) -> str:
    return (
        f'{{% if message.role == "assistant" %}}{_written("<start_of_turn>model" + chr(10))}{{% else %}}'
        f"{_written('<start_of_turn>{role}' + chr(10))}{system}{{% endif %}}"
        f"{_written('{trimmed}<end_of_turn>' + chr(10))}"
    )


def _orion_turn(system: str) -> str:
    end = _written("{content}\n\nAssistant: </s>")
    return (
        f'{{% if message.role == "user" %}}{_written("Human: ")}{system}{end}'
        f"{{% else %}}{_written('{content}</s>')}{{% endif %}}"
    )


_GLM = "<|{role}|>\n{content}"
_MISTRAL_V7 = {"system": "[SYSTEM_PROMPT]{0}{content}[/SYSTEM_PROMPT]", "user": "[INST]{0}{content}[/INST]"}
_SYS = "<<SYS>>\n{content}\n<</SYS>>\n\n"
_COHERE = "<|START_OF_TURN_TOKEN|><|%s_TOKEN|>{trimmed}<|END_OF_TURN_TOKEN|>"
_EXAONE = {
    "system": "[|system|]{trimmed}[|endofturn|]\n",
    "user": "[|user|]{trimmed}\n",
    "assistant": "[|assistant|]{trimmed}[|endofturn|]\n",
}
_HUNYUAN_DENSE = (
    _written("<｜hy_begin▁of▁sentence｜>")
    + '{% for message in messages %}{% if loop.first and message.role == "system" %}'
    + _written("{content}<｜hy_place▁holder▁no▁3｜>")
    + '{% elif message.role == "assistant" %}'
    + _written("<｜hy_Assistant｜>{content}<｜hy_place▁holder▁no▁2｜>")
    + '{% elif message.role == "user" %}'
    + _written("<｜hy_User｜>{content}")
    + "{% endif %}{% endfor %}{% if add_generation_prompt %}"
    + _written("<｜hy_Assistant｜>")
    + "{% else %}"
    + _written("<｜hy_place▁holder▁no▁8｜>")
    + "{% endif %}"
)

BUILTIN_TEMPLATES = {
    "bailing": _by_role(
        "<role>ASSISTANT</role>",
        user="<role>HUMAN</role>{content}",
        assistant="<role>ASSISTANT</role>{content}",
        system="<role>SYSTEM</role>{content}",
    ),
    "chatglm3": _same("<|{role}|>\n {content}", "<|assistant|>", "[gMASK]sop"),
    "chatglm4": _same(_GLM, "<|assistant|>\n", "[gMASK]<sop>"),
    "chatml": _same("<|im_start|>{role}\n{content}<|im_end|>\n", "<|im_start|>assistant\n"),
    "command-r": _by_role(
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
        system=_COHERE % "SYSTEM",
        user=_COHERE % "USER",
        assistant=_COHERE % "CHATBOT",
    ),
    "deepseek": _by_role(
        "### Response:\n",
        system="{content}",
        user="### Instruction:\n{content}\n",
        assistant="### Response:\n{content}\n<|EOT|>\n",
    ),
    "deepseek2": _by_role(
        "Assistant:",
        system="{content}\n\n",
        user="User: {content}\n\n",
        assistant="Assistant: {content}<｜end▁of▁sentence｜>",
    ),
    "deepseek3": _by_role(
        "<｜Assistant｜>",
        system="{content}\n\n",
        user="<｜User｜>{content}",
        assistant="<｜Assistant｜>{content}<｜end▁of▁sentence｜>",
    ),
    "exaone3": _by_role("[|assistant|]", **_EXAONE),
    "exaone4": _by_role("[|assistant|]", **_EXAONE, tool="[|tool|]{trimmed}[|endofturn|]\n"),
    "falcon3": _same("<|{role}|>\n{content}\n", "<|assistant|>\n"),
    "gemma": _merged_system(_gemma_turn, " | trim", "<start_of_turn>model\n"),
    "gigachat": _by_role(
        "assistant<|role_sep|>",
        "<s>",
        system="{content}<|message_sep|>",
        user="user<|role_sep|>{content}<|message_sep|>available functions<|role_sep|>[]<|message_sep|>",
        assistant="assistant<|role_sep|>{content}<|message_sep|>",
    ),
    "glmedge": _same(_GLM, "<|assistant|>"),
    "granite": _same(
        "<|start_of_role|>{role}<|end_of_role|>{content}<|end_of_text|>\n", "<|start_of_role|>assistant<|end_of_role|>"
    ),
    "hunyuan-dense": _HUNYUAN_DENSE,
    "hunyuan-moe": _by_role(
        "",
        system="<|startoftext|>{content}<|extra_4|>",
        assistant="{content}<|eos|>",
        other="<|startoftext|>{content}<|extra_0|>",
    ),
    "kimi-k2": _by_role(
        "<|im_assistant|>assistant<|im_middle|>",
        system="<|im_system|>system<|im_middle|>{content}<|im_end|>",
        user="<|im_user|>user<|im_middle|>{content}<|im_end|>",
        assistant="<|im_assistant|>assistant<|im_middle|>{content}<|im_end|>",
        tool="<|im_system|>tool<|im_middle|>{content}<|im_end|>",
    ),
    "llama2": _llama2("{content}\n", "[INST] "),
    "llama2-sys": _llama2(_SYS, "[INST] "),
    "llama2-sys-bos": _llama2(_SYS, "<s>[INST] "),
    "llama2-sys-strip": _llama2(_SYS.replace("content", "trimmed"), "[INST] ", "{trimmed}"),
    "llama3": _same(
        "<|start_header_id|>{role}<|end_header_id|>\n\n{trimmed}<|eot_id|>",
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "llama4": _same(
        "<|header_start|>{role}<|header_end|>\n\n{trimmed}<|eot|>", "<|header_start|>assistant<|header_end|>\n\n"
    ),
    "megrez": _same("<|role_start|>{role}<|role_end|>{content}<|turn_end|>", "<|role_start|>assistant<|role_end|>"),
    "minicpm": _by_role("", user="<用户>{trimmed}<AI>", other="{trimmed}"),
    "mistral-v1": _mistral(" ", " ", "{content}"),
    "mistral-v3": _mistral("", " ", "{trimmed}"),
    "mistral-v3-tekken": _mistral("", "", "{content}"),
    "mistral-v7": _by_role(
        "", **{role: turn.replace("{0}", " ") for role, turn in _MISTRAL_V7.items()}, other=" {content}</s>"
    ),
    "mistral-v7-tekken": _by_role(
        "", **{role: turn.replace("{0}", "") for role, turn in _MISTRAL_V7.items()}, other="{content}</s>"
    ),
    "monarch": (
        "{% for message in messages %}{% if not loop.first %}"
        + _written("<s>")
        + "{% endif %}"
        + _written("{role}\n{content}</s>\n")
        + "{% endfor %}{% if add_generation_prompt %}"
        + _written("<s>assistant\n")
        + "{% endif %}"
    ),
    "openchat": _by_role(
        "GPT4 Correct Assistant:",
        system="{content}<|end_of_turn|>",
        user="GPT4 Correct User: {content}<|end_of_turn|>",
        assistant="GPT4 Correct Assistant: {content}<|end_of_turn|>",
    ),
    "orion": _merged_system(_orion_turn, "", ""),
    "phi3": _same("<|{role}|>\n{content}<|end|>\n", "<|assistant|>\n"),
    "phi4": _same("<|im_start|>{role}<|im_sep|>{content}<|im_end|>", "<|im_start|>assistant<|im_sep|>"),
    "rwkv-world": _by_role(
        "Assistant:",
        system="System: {trimmed}\n\n",
        user="User: {trimmed}\n\n",
        assistant="Assistant: {trimmed}\n\n",
    ),
    "smolvlm": _by_role(
        "Assistant:",
        "<|im_start|>",
        system="{content}\n\n",
        user="User: {content}<end_of_utterance>\n",
        other="Assistant: {content}<end_of_utterance>\n",
    ),
    "vicuna": _by_role(
        "ASSISTANT:", system="{content}\n\n", user="USER: {content}\n", assistant="ASSISTANT: {content}</s>\n"
    ),
    "vicuna-orca": _by_role(
        "ASSISTANT:", system="SYSTEM: {content}\n", user="USER: {content}\n", assistant="ASSISTANT: {content}</s>\n"
    ),
    "zephyr": _same("<|{role}|>\n{content}<|endoftext|>\n", "<|assistant|>\n"),
}


def find_template(given: str) -> tuple[str, str] | None:
    """Return the source of a template and its label in errors. `given` is a name of BUILTIN_TEMPLATES or a file. Return
    None for OWN, the model's own. Raises RequestError if it is neither."""
    from sporelm.text.template import MAX_TEMPLATE_CHARACTERS
    from sporelm.weights.text_file import read_text_file

    if given == OWN:
        return None
    if given in BUILTIN_TEMPLATES:
        return BUILTIN_TEMPLATES[given], f"the chat template {given}"
    path = path_of(given)
    if path is None:
        raise RequestError(
            f"the chat template is neither a file nor a name (got {shown(given, 200)}; names: {OWN} (the model's own), "
            f"{', '.join(BUILTIN_TEMPLATES)})"
        )
    source = read_text_file(path, "the chat template", 4 * MAX_TEMPLATE_CHARACTERS)
    return source, f"the chat template {shown(path.name, 100)}"


def path_of(given: str) -> Path | None:
    """Return the path if anything exists there, else None."""
    try:
        path = Path(given).expanduser()
        return path if given and path.exists() else None
    except (OSError, RuntimeError, ValueError):
        return None


def use_template(tokenizer: Tokenizer, given: str) -> None:
    """Replace a tokenizer's chat template by one that `find_template` accepts.

    Raises RequestError for a name that is neither a built-in template nor a file, ModelFileError for a template that
    cannot be compiled.
    """
    from sporelm.text.template import ChatTemplate

    found = find_template(given)
    if found is None:
        return
    source, label = found
    bos = tokenizer.special.names.get("bos_token", "")
    if given in BUILTIN_TEMPLATES and tokenizer.add_bos and not source.startswith(_written(bos)):
        source = "{{ bos_token }}" + source
    ChatTemplate(source, tokenizer.special.names, label=label)
    others = {name: text for name, text in tokenizer.chat_templates.items() if name != "tool_use"}
    tokenizer.chat_templates = {**others, "default": source}
    tokenizer.template_label = label
