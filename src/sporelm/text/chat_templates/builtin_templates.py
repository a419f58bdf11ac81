"""Built-in chat templates, for models whose files have none, or a wrong one: those of llama.cpp's `--chat-template`.

The formats are those of llama.cpp (`src/llama-chat.cpp`); the templates are ours. BOS is not part of them: it is added
if the model's files ask for it.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path

from sporelm.errors import RequestError, safe_repr
from sporelm.text.tokenizers.tokenizer import Tokenizer

MODEL_TEMPLATE = "default"  # the model's own template
_PLACEHOLDER = re.compile(r"(\{(?:role|content|trimmed)\})")
_VALUES = {"{role}": "message.role", "{content}": "message.content", "{trimmed}": "message.content | trim"}


def _to_jinja(form: str) -> str:
    """Return a form as Jinja; {role}, {content} and {trimmed} in it are replaced by those of a message."""
    pieces = (
        _VALUES.get(piece) or json.dumps(piece, ensure_ascii=False) for piece in _PLACEHOLDER.split(form) if piece
    )
    return "".join(f"{{{{ {piece} }}}}" for piece in pieces)


def _uniform(turn: str, end: str, start: str = "") -> str:
    """Return a template that renders all messages in the same form, then the generation prompt."""
    return _by_role(end, start, other=turn)


def _by_role(end: str, start: str = "", **turns: str) -> str:
    """Return a template with a form for each role, and `other` for all remaining roles."""
    turn = _to_jinja(turns.pop("other", ""))
    if turns:
        cases = "{% elif ".join(f'message.role == "{role}" %}}{_to_jinja(form)}' for role, form in turns.items())
        turn = f"{{% if {cases}{{% else %}}{turn}{{% endif %}}"
    generation_prompt = f"{{% if add_generation_prompt %}}{_to_jinja(end)}{{% endif %}}" if end else ""
    return f"{_to_jinja(start)}{{% for message in messages %}}{turn}{{% endfor %}}{generation_prompt}"


def _mistral(before: str, after: str, answer: str) -> str:
    """Return one of Mistral's first formats: a turn begins with [INST] and includes the system message."""
    return (
        "{% set turn = namespace(open=false) %}{% for message in messages %}"
        f"{{% if not turn.open %}}{_to_jinja(f'{before}[INST]{after}')}{{% set turn.open = true %}}{{% endif %}}"
        f'{{% if message.role == "system" %}}{_to_jinja("{content}" + chr(10) * 2)}'
        f'{{% elif message.role == "user" %}}{_to_jinja("{content}" + before + "[/INST]")}'
        f"{{% else %}}{_to_jinja(after + answer + '</s>')}{{% set turn.open = false %}}{{% endif %}}{{% endfor %}}"
    )


def _llama2(system: str, again: str, content: str = "{content}") -> str:
    """Return Llama 2's formats; the first turn begins with the text, each later one with `again`."""
    return (
        '{% set turn = namespace(open=true) %}{{ "[INST] " }}{% for message in messages %}'
        f"{{% if not turn.open %}}{_to_jinja(again)}{{% set turn.open = true %}}{{% endif %}}"
        f'{{% if message.role == "system" %}}{_to_jinja(system)}'
        f'{{% elif message.role == "user" %}}{_to_jinja(content + " [/INST]")}'
        f"{{% else %}}{_to_jinja(content + '</s>')}{{% set turn.open = false %}}{{% endif %}}{{% endfor %}}"
    )


def _merged_system(turn: Callable[[str], str], content: str, end: str) -> str:
    """Return a format without system messages: their text is put before the next user message."""
    system = "{{ system.text }}" + _to_jinja("\n\n")
    return (
        '{% set system = namespace(text="") %}{% for message in messages %}{% if message.role == "system" %}'
        f"{{% set system.text = system.text ~ (message.content{content}) %}}{{% else %}}"
        + turn(f'{{% if system.text %}}{system}{{% set system.text = "" %}}{{% endif %}}')
        + "{% endif %}{% endfor %}"
        + (f"{{% if add_generation_prompt %}}{_to_jinja(end)}{{% endif %}}" if end else "")
    )


def _gemma_turn(system: str) -> str:
    return (
        f'{{% if message.role == "assistant" %}}{_to_jinja("<start_of_turn>model" + chr(10))}{{% else %}}'
        f"{_to_jinja('<start_of_turn>{role}' + chr(10))}{system}{{% endif %}}"
        f"{_to_jinja('{trimmed}<end_of_turn>' + chr(10))}"
    )


def _orion_turn(system: str) -> str:
    end = _to_jinja("{content}\n\nAssistant: </s>")
    return (
        f'{{% if message.role == "user" %}}{_to_jinja("Human: ")}{system}{end}'
        f"{{% else %}}{_to_jinja('{content}</s>')}{{% endif %}}"
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
    _to_jinja("<｜hy_begin▁of▁sentence｜>")
    + '{% for message in messages %}{% if loop.first and message.role == "system" %}'
    + _to_jinja("{content}<｜hy_place▁holder▁no▁3｜>")
    + '{% elif message.role == "assistant" %}'
    + _to_jinja("<｜hy_Assistant｜>{content}<｜hy_place▁holder▁no▁2｜>")
    + '{% elif message.role == "user" %}'
    + _to_jinja("<｜hy_User｜>{content}")
    + "{% endif %}{% endfor %}{% if add_generation_prompt %}"
    + _to_jinja("<｜hy_Assistant｜>")
    + "{% else %}"
    + _to_jinja("<｜hy_place▁holder▁no▁8｜>")
    + "{% endif %}"
)

BUILTIN_TEMPLATES = {
    "bailing": _by_role(
        "<role>ASSISTANT</role>",
        user="<role>HUMAN</role>{content}",
        assistant="<role>ASSISTANT</role>{content}",
        system="<role>SYSTEM</role>{content}",
    ),
    "chatglm3": _uniform("<|{role}|>\n {content}", "<|assistant|>", "[gMASK]sop"),
    "chatglm4": _uniform(_GLM, "<|assistant|>\n", "[gMASK]<sop>"),
    "chatml": _uniform("<|im_start|>{role}\n{content}<|im_end|>\n", "<|im_start|>assistant\n"),
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
    "falcon3": _uniform("<|{role}|>\n{content}\n", "<|assistant|>\n"),
    "gemma": _merged_system(_gemma_turn, " | trim", "<start_of_turn>model\n"),
    "gigachat": _by_role(
        "assistant<|role_sep|>",
        "<s>",
        system="{content}<|message_sep|>",
        user="user<|role_sep|>{content}<|message_sep|>available functions<|role_sep|>[]<|message_sep|>",
        assistant="assistant<|role_sep|>{content}<|message_sep|>",
    ),
    "glmedge": _uniform(_GLM, "<|assistant|>"),
    "granite": _uniform(
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
    "llama3": _uniform(
        "<|start_header_id|>{role}<|end_header_id|>\n\n{trimmed}<|eot_id|>",
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "llama4": _uniform(
        "<|header_start|>{role}<|header_end|>\n\n{trimmed}<|eot|>", "<|header_start|>assistant<|header_end|>\n\n"
    ),
    "megrez": _uniform("<|role_start|>{role}<|role_end|>{content}<|turn_end|>", "<|role_start|>assistant<|role_end|>"),
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
        + _to_jinja("<s>")
        + "{% endif %}"
        + _to_jinja("{role}\n{content}</s>\n")
        + "{% endfor %}{% if add_generation_prompt %}"
        + _to_jinja("<s>assistant\n")
        + "{% endif %}"
    ),
    "openchat": _by_role(
        "GPT4 Correct Assistant:",
        system="{content}<|end_of_turn|>",
        user="GPT4 Correct User: {content}<|end_of_turn|>",
        assistant="GPT4 Correct Assistant: {content}<|end_of_turn|>",
    ),
    "orion": _merged_system(_orion_turn, "", ""),
    "phi3": _uniform("<|{role}|>\n{content}<|end|>\n", "<|assistant|>\n"),
    "phi4": _uniform("<|im_start|>{role}<|im_sep|>{content}<|im_end|>", "<|im_start|>assistant<|im_sep|>"),
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
    "zephyr": _uniform("<|{role}|>\n{content}<|endoftext|>\n", "<|assistant|>\n"),
}


def find_template(name_or_path: str) -> tuple[str, str] | None:
    """Return the source of a template, by its name in BUILTIN_TEMPLATES or its file, and its label in errors. Return
    None for MODEL_TEMPLATE. Raises RequestError if there is no such name or file."""
    from sporelm.files.text_file import read_text_file
    from sporelm.text.chat_templates.chat_template import MAX_TEMPLATE_CHARACTERS

    if name_or_path == MODEL_TEMPLATE:
        return None
    if name_or_path in BUILTIN_TEMPLATES:
        return BUILTIN_TEMPLATES[name_or_path], f"the chat template {name_or_path}"
    path = _find_path(name_or_path)
    if path is None:
        raise RequestError(
            f"the chat template is neither a file nor a name (got {safe_repr(name_or_path, 200)}; names: "
            f"{MODEL_TEMPLATE} (the model's own), {', '.join(BUILTIN_TEMPLATES)})"
        )
    source = read_text_file(path, "the chat template", 4 * MAX_TEMPLATE_CHARACTERS)
    return source, f"the chat template {safe_repr(path.name, 100)}"


def _find_path(text: str) -> Path | None:
    """Return the path if it exists, else None."""
    try:
        path = Path(text).expanduser()
        return path if text and path.exists() else None
    except (OSError, RuntimeError, ValueError):
        return None


def use_template(tokenizer: Tokenizer, name_or_path: str) -> None:
    """Replace a tokenizer's chat template by one that `find_template` accepts.

    Raises RequestError for a name that is neither a built-in template nor a file, ModelFileError for a template that
    cannot be compiled.
    """
    from sporelm.text.chat_templates.chat_template import ChatTemplate

    template = find_template(name_or_path)
    if template is None:
        return
    source, label = template
    bos = tokenizer.special.names.get("bos_token", "")
    if name_or_path in BUILTIN_TEMPLATES and tokenizer.add_bos and not source.startswith(_to_jinja(bos)):
        source = "{{ bos_token }}" + source
    ChatTemplate(source, tokenizer.special.names, label=label)
    others = {name: text for name, text in tokenizer.chat_templates.items() if name != "tool_use"}
    tokenizer.chat_templates = {**others, "default": source}
    tokenizer.template_label = label
