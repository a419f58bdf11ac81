"""Which dialect a model's template and vocabulary stand for."""

from pathlib import Path

import pytest

from sporelm.text.dialects import DIALECTS, choose_dialect
from sporelm.text.dialects.deepseek import DeepSeek
from sporelm.text.dialects.json_block import GigaChat
from sporelm.text.dialects.mistral import Mistral
from unit.text.dialects.dialect_models import TEMPLATES, marker_tokenizer


def test_dialect_of_every_known_template(shared: Path) -> None:
    found = {}
    for path in (shared / "data" / "templates").glob("*.jinja"):
        dialect = choose_dialect(path.read_text(encoding="utf-8"))
        found[path.name] = (dialect.name, dialect.thinking.open if dialect.thinking else None)
    assert found == TEMPLATES


@pytest.mark.parametrize(
    ("template", "name", "thinking"),
    [
        ("{{ '<|tool_call>' }} <|channel>thought", "gemma4", "<|channel>thought"),
        ("<seed:think> <seed:tool_call> <function= <parameter=", "seed", "<seed:think>"),
        ("[TOOL_CALLS] [THINK]", "mistral", "[THINK]"),
        ("<|START_THINKING|> <|START_ACTION|>", "cohere", "<|START_THINKING|>"),
        ("<|tool_calls_section_begin|> <think>", "kimi", "<think>"),
        ("<|tool_call|>", "granite", None),
        ("<TOOLCALL>[ <think>", "nemotron", "<think>"),
        ("<|tool_call_start|>[", "lfm2", "<think>"),
        ("List of tools: <|tool_list_start|>[", "lfm2", "<think>"),
        ("<function_calls>\\nget(x='1')</function_calls>", "olmo3", None),
        ("<minimax:tool_call> <invoke name= <think>", "minimax", "<think>"),
        ("']<]minimax[>[' '<tool_call>' '<invoke name=\"' '<mm:think>'", "minimax_m3", "<mm:think>"),
        ("'<|open|>' + tag '<|sep|>' '<|close|>' + tag <|end_of_msg|>", "kimi_k3", "<|open|>think<|sep|>"),
        ("'<|start|>assistant' '<|message|>' '<atem:function_calls>'", "muse", None),
        ("<|start_header_id|> functools[{'name':", "firefunction", None),
        ("<role>ASSISTANT</role> <tool_call>{name} <arg_key> <think>", "glm", "<think>"),  # Ling 3
        ("<assistant> <tool_call> <arg_key> <think>", "glm", "<think>"),  # Laguna
        ("<tool_call>\\n<function= <parameter= <think>", "qwen_coder", "<think>"),  # Step 3.5
        ("set dsml = '｜DSML｜' 'function_calls>'", "dsml", None),
        ("HYTK = ':new' '<tool_call{}>'.format '<tool_sep{}>' '<arg_key{}>'", "hy3", "<think:new>"),
        ("<tool_call>name<tool_sep><arg_key>", "hy3", "<think>"),
        ("<tool_sep:opensource> <arg_key:opensource>", "hy3", "<think:opensource>"),
        ("<|tool_call:begin|> <|end|>", "solar", "<|think|>"),
        ("<|tools_prefix|> <|inner_prefix|>", "apertus", "<|inner_prefix|>"),
        ("<tool_calls>[", "tool_calls", "<think>"),
        ("<|action_start|><|plugin|>", "internlm", None),
        ("role_sep='<|role_sep|>', function_call='<|function_call|>'", "gigachat", None),
        ("'function call' '<|role_sep|>'", "gigachat", None),
        ("<|CHATBOT_TOKEN|> 'Action:' \"tool_name\"", "command_r", None),
        ("<start_of_turn> <start_function_call>", "functiongemma", None),
        ("<|start_header_id|> <|python_tag|> <function=a>{}</function>", "functionary", None),
        (">>>all", "recipients", None),
        ("<|user|>\\n<|end|>", "generic", "<think>"),
        ("", "generic", "<think>"),
    ],
)
def test_dialect_by_markers(template: str, name: str, thinking: str | None) -> None:
    dialect = choose_dialect(template)
    assert dialect.name == name
    assert (dialect.thinking.open if dialect.thinking else None) == thinking


@pytest.mark.parametrize(
    ("template", "reasons"),
    [
        ("<tool_call> <think>", True),
        ("<tool_call> </think>", False),
        ("<tool_call>", False),
        ("<|channel|> <|message|>", False),
        ("<|channel|>analysis<|message|>", True),
        ("<|message|><atem:function_calls> to=self", True),
        ("<|message|><atem:function_calls>", False),
        ("'<|open|>' + tag '<|sep|>' '<|close|>' + tag, open_tag('think')", True),
        ("HYTK = ':new' '<tool_call{}>' '<tool_sep{}>' '<arg_key{}>' '<think{}>'.format(HYTK)", True),
        (">>>all analysis", False),
    ],
)
def test_reasoning_support_of_templates(template: str, reasons: bool) -> None:
    assert choose_dialect(template).supports_reasoning(template) is reasons


def test_forced_format_follows_the_template() -> None:
    fenced, plain = choose_dialect("<｜tool▁calls▁begin｜> <｜tool▁sep｜> ```json"), choose_dialect("<｜tool▁sep｜>")
    assert isinstance(fenced, DeepSeek)
    assert isinstance(plain, DeepSeek)
    assert (fenced.fenced, plain.fenced) == (True, False)
    named, array = choose_dialect("[TOOL_CALLS][ARGS]"), choose_dialect("[TOOL_CALLS][")
    assert isinstance(named, Mistral)
    assert isinstance(array, Mistral)
    assert (named.named, array.named) == (True, False)
    message, marker = choose_dialect("'function call' '<|role_sep|>'"), choose_dialect("<|role_sep|> <|function_call|>")
    assert isinstance(message, GigaChat)
    assert isinstance(marker, GigaChat)
    assert (message.opening, marker.opening) == ("function call<|role_sep|>\n", "<|function_call|>")
    older, newer = choose_dialect("｜DSML｜function_calls>"), choose_dialect("｜DSML｜tool_calls>")
    assert older.start_markers[0] == "<｜DSML｜function_calls>"
    assert newer.start_markers[0] == "<｜DSML｜tool_calls>"


def test_dialect_by_vocabulary_if_the_template_does_not_tell(tmp_path: Path) -> None:
    tokenizer = marker_tokenizer(tmp_path, ("<|python_tag|>", "<|start_header_id|>"))
    template = "<|start_header_id|>{{ messages[0].role }}<|end_header_id|>"
    assert choose_dialect(template).name == "generic"
    assert choose_dialect(template, tokenizer).name == "llama3"
    assert choose_dialect("<|im_start|>", tokenizer).name == "generic"
    assert choose_dialect("<|im_start|>", marker_tokenizer(tmp_path / "lfm", ("<|tool_call_start|>",))).name == "lfm2"
    assert (
        choose_dialect("<|im_start|>", marker_tokenizer(tmp_path / "internlm", ("<|action_start|>",))).name
        == "internlm"
    )
    assert choose_dialect(None, tokenizer).name == "generic"


def test_llama_4_by_its_headers() -> None:
    headers = "<|header_start|>user<|header_end|>"
    assert choose_dialect(headers + "<|python_start|>{{ content }}<|python_end|>").name == "llama4"
    assert choose_dialect(headers + "in the format of [func_name1(params_name1=params_value1...)]").name == "llama4"
    assert choose_dialect("<|user_start|><|python_start|>").name == "generic"


def test_dialect_names_are_the_table_keys() -> None:
    assert all(make().name == name for name, make in DIALECTS.items())
    assert len(DIALECTS) == 35
