# ruff: noqa: E501 - answers are easier to read in one line
"""Answers in the models' documented formats, written by hand, and their parts.

Each is (dialect, prompt's end, answer, content, reasoning, calls); a call is (name, arguments, complete).
"""

from collections.abc import Iterator
from itertools import count, pairwise
from typing import Any

from sporelm.text.dialects import DIALECTS, Dialect, Reply
from sporelm.text.dialects.deepseek import DeepSeek
from sporelm.text.dialects.json_block import GigaChat
from sporelm.text.dialects.llama4 import Llama4
from sporelm.text.dialects.mistral import Mistral

PLACE = {"type": "object", "properties": {"k": {"type": "boolean"}}, "required": ["k"], "additionalProperties": False}
WEATHER = {
    "type": "object",
    "properties": {"place": {"type": "string"}, "days": {"type": "integer"}, "near": {"$ref": "#/$defs/near"}},
    "required": ["place"],
    "$defs": {"near": PLACE},
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "clock"}},
]
BOTH = '{"place": "Zürich", "days": 2}'
BEGIN, CALL, SEPARATOR = "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"
CALL_END, END = "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"
CHECKS = "I look it up."


def call(arguments: str = BOTH, name: str = "weather", complete: bool = True) -> tuple[str, str, bool]:
    return name, arguments, complete


HERMES = f'<tool_call>\n{{"name": "weather", "arguments": {BOTH}}}\n</tool_call>'
CLOCK = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
TAGS = '{"place": "a</tool_call>b<tool_call>"}'
CODER = "<tool_call>\n<function=weather>\n<parameter=place>\nZürich\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
HARMONY = "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
KIMI = f"<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{BOTH}<|tool_call_end|>"
GEMMA = '<|tool_call>call:weather{days:2,near:{k:true},place:<|"|>a "b"\n<|"|>}<tool_call|>'

K3 = '<|open|>tools<|sep|><|open|>call tool="weather" index="1"<|sep|><|open|>argument key="place" type="string"<|sep|>Zürich<|close|>argument<|sep|><|open|>argument key="days" type="number"<|sep|>2<|close|>argument<|sep|><|close|>call<|sep|>'
K3_CLOCK = '<|open|>call tool="clock" index="2"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>'
SAID, UNSAID = "<|open|>response<|sep|>", "<|close|>response<|sep|>"
M3 = '<tool_call>\n]<]minimax[>[<invoke name="weather">]<]minimax[>[<place>Zürich]<]minimax[>[</place>]<]minimax[>[<days>2]<]minimax[>[</days>]<]minimax[>[</invoke>\n'
M3 = f"]<]minimax[>[{M3}"
M3_CLOCK = ']<]minimax[>[<invoke name="clock">]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>'
MUSE = ' to=weather<|message|><atem:function_calls>\n<atem:invoke name="weather">\n<atem:parameter name="place">Zürich</atem:parameter>\n<atem:parameter name="days">2</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eom|><|start|>assistant'
MUSE_CLOCK = (
    ' to=clock<|message|><atem:function_calls>\n<atem:invoke name="clock">\n</atem:invoke>\n</atem:function_calls>'
)
MUSE_THINKS = " to=self<|message|>Hm<|eom|><|start|>assistant"

ANSWERS: dict[str, tuple[str, str, str, str, str, list[tuple[str, str, bool]]]] = {
    "plain": ("hermes", "", " Hello <b>\n\n", " Hello <b>\n\n", "", []),
    "one": ("hermes", "", HERMES, "", "", [call()]),
    "text before": ("hermes", "", f"{CHECKS}\n\n{HERMES}\n", CHECKS, "", [call()]),
    "between and after": ("hermes", "", f"A\n{HERMES}\nB\n{CLOCK}\nC", "A\n\nB\n\nC", "", [call(), call("{}", "clock")]),
    "parallel": ("hermes", "", f"{HERMES}\n{CLOCK}", "", "", [call(), call("{}", "clock")]),
    "thinks": ("hermes", "", f"<think>\nHm.\n</think>\n\nHi\n{HERMES}", "Hi", "Hm.", [call()]),
    "thinks from the prompt": ("hermes", "<think>\n", f"Hm.\n\nSo.\n</think>\n\nHi{HERMES}", "Hi", "Hm.\n\nSo.", [call()]),
    "says it twice": ("hermes", "<think>\n", "<think>\nHm.</think>Hi", "Hi", "Hm.", []),
    "did not think": ("hermes", "<think>\n\n</think>\n\n", "Hi", "Hi", "", []),
    "thinks to the end": ("hermes", "<think>", "Hm <tool_call> hm ", "", "Hm <tool_call> hm", []),
    "speaks of tags": ("hermes", "", "The tag <think> and </think>, <tool_call>.", *["The tag <think> and </think>, <tool_call>.", "", []]),
    "closing tag inside": ("hermes", "", f'<tool_call>{{"name": "weather", "arguments": {TAGS}}}</tool_call>.', ".", "", [call(TAGS)]),
    "no closing tag": ("hermes", "", HERMES.removesuffix("\n</tool_call>"), "", "", [call()]),
    "cut in a text": ("hermes", "", HERMES[: HERMES.index("ürich")], "", "", [call('{"place": "Z"}', complete=False)]),
    "cut in a key": ("hermes", "", HERMES[: HERMES.index("ays")], "", "", [call('{"place": "Zürich"}', complete=False)]),
    "cut in a number": ("hermes", "", HERMES[: HERMES.index("}}")], "", "", [call('{"place": "Zürich"}', complete=False)]),
    "cut before the name": ("hermes", "", 'Hi\n<tool_call>\n{"name": "wea', 'Hi\n<tool_call>\n{"name": "wea', "", []),
    "cut in a tag": ("hermes", "", "Hi <tool_c", "Hi <tool_c", "", []),
    "arguments first": ("hermes", "", f'<tool_call>{{"arguments": {BOTH}, "name": "weather"}}</tool_call>', "", "", [call()]),
    "arguments as text": ("hermes", "", '<tool_call>{"name": "weather", "arguments": "{\\"place\\": \\"x\\"}"}</tool_call>', "", "", [call('{"place": "x"}')]),
    "nested": ("hermes", "", f'<tool_call>{{"type": "function", "function": {{"name": "weather", "arguments": {BOTH}}}}}</tool_call>', "", "", [call()]),
    "not a call": ("hermes", "", '<tool_call>{"a": [1]}</tool_call>', '<tool_call>{"a": [1]}</tool_call>', "", []),
    "arguments no object": ("hermes", "", '<tool_call>{"name": "clock", "arguments": [1]}</tool_call>', '<tool_call>{"name": "clock", "arguments": [1]}</tool_call>', "", []),
    "malformed": ("hermes", "", '<tool_call>{"name": "weather", "arguments": {"days": 1, place}}\n', "place}}\n", "", [call('{"days": 1}', complete=False)]),
    "mended": ("hermes", "", '<tool_call>{"name": "weather", "arguments": {"place": "a\nb\\d\\ud800", "near": [True, None,],}}', "", "", [call('{"place": "a\\nb\\\\d\\ufffd", "near": [true, null]}')]),
    "coder": ("qwen_coder", "", f"{CHECKS}\n\n{CODER}</function>\n</tool_call>", CHECKS, "", [call()]),
    "coder, two": ("qwen_coder", "<think>\n", f"Hm\n</think>\n\n{CODER}</function>\n</tool_call>\n<tool_call>\n<function=clock>\n</function>\n</tool_call>", "", "Hm", [call(), call("{}", "clock")]),
    "coder, tag inside": ("qwen_coder", "", "<tool_call>\n<function=weather>\n<parameter=place>\na\n</parameter>\nb\n\n</parameter>\n</function>", "", "", [call('{"place": "a\\n</parameter>\\nb\\n"}')]),
    "coder, object": ("qwen_coder", "", '<function=weather>\n<parameter=near>\n{"k":\n true}\n</parameter>\n<parameter=new>\nx y\n</parameter>\n</function>', "", "", [call('{"near": {"k":\n true}, "new": "x y"}')]),
    "coder, cut": ("qwen_coder", "", CODER[: CODER.index("ürich")], "", "", [call('{"place": "Z"}', complete=False)]),
    "coder, cut in a number": ("qwen_coder", "", CODER[: CODER.rindex("\n</para")], "", "", [call('{"place": "Zürich"}', complete=False)]),
    "coder, prose": ("qwen_coder", "", "<tool_call> and <function=f>", "<tool_call> and <function=f>", "", []),
    "seed": ("seed", "", "<seed:think>Hm</seed:think>" + CODER.replace("tool_call", "seed:tool_call") + "</function>\n</seed:tool_call>", "", "Hm", [call()]),
    "glm": ("glm", "", f"\n<think>Hm</think>\n{CHECKS}\n<tool_call>weather\n<arg_key>place</arg_key>\n<arg_value>Zürich</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>", CHECKS, "Hm", [call()]),
    "glm, no arguments": ("glm", "", "<tool_call>clock\n</tool_call>\n<tool_call>clock</tool_call>", "", "", [call("{}", "clock")] * 2),
    "minicpm": ("minicpm", "", '<function name="weather"><param name="place"><![CDATA[<a></param>]]></param><param name="days">2</param></function>', "", "", [call('{"place": "<a></param>", "days": 2}')]),
    "llama": ("llama3", "", f'{{"name": "weather", "parameters": {BOTH}}}', "", "", [call()]),
    "llama, two": ("llama3", "", f'<|python_tag|>{{"name": "weather", "parameters": {BOTH}}}; {{"name": "clock", "parameters": {{}}}}', "", "", [call(), call("{}", "clock")]),
    "llama, built in": ("llama3", "", '<|python_tag|>weather.call(place="Zürich", days=2)', "", "", [call()]),
    "llama, code": ("llama3", "", "<|python_tag|>import os", "<|python_tag|>import os", "", []),
    "llama, another's JSON": ("llama3", "", '{"name": "Bob", "parameters": {}}', '{"name": "Bob", "parameters": {}}', "", []),
    "llama, in a line": ("llama3", "", 'So {"name": "clock"}\n{"name": "clock"}', 'So {"name": "clock"}', "", [call("{}", "clock")]),
    "llama, semicolon": ("llama3", "", '{"name": "clock"}; bye', "; bye", "", [call("{}", "clock")]),
    "llama 4": ("llama4", "", '[weather(place="Zürich", days=2), clock()]', "", "", [call(), call("{}", "clock")]),
    "llama 4, marks": ("llama4", "", f'{CHECKS}<|python_start|>[weather(place="a]b", near={{"k": True}})]<|python_end|> Bye', f"{CHECKS} Bye", "", [call('{"place": "a]b", "near": {"k": true}}')]),
    "llama 4, no list": ("llama4", "", "<|python_start|>clock()<|python_end|>", "", "", [call("{}", "clock")]),
    "llama 4, JSON": ("llama4", "", f'<|python_start|>{{"name": "weather", "parameters": {BOTH}}}<|python_end|>', "", "", [call()]),
    "llama 4, bare JSON": ("llama4", "", f'{{"name": "weather", "parameters": {BOTH}}}', "", "", [call()]),
    "llama 4, a list": ("llama4", "", "[1, 2] and [sum(x), clock()]", "[1, 2] and [sum(x), clock()]", "", []),
    "llama 4, another's call": ("llama4", "", "[sum(x=1)]\nSo", "[sum(x=1)]\nSo", "", []),
    "llama 4, code": ("llama4", "", "<|python_start|>import os<|python_end|>", "<|python_start|>import os<|python_end|>", "", []),
    "mistral": ("mistral", "", f'[TOOL_CALLS][{{"name": "weather", "arguments": {BOTH}, "id": "abcdefghi"}}, {{"name": "clock", "arguments": {{}}}}]', "", "", [call(), call("{}", "clock")]),
    "mistral, later": ("mistral", "", f"[THINK]Hm[/THINK]{CHECKS}[TOOL_CALLS]weather[ARGS]{BOTH}[TOOL_CALLS]clock[CALL_ID]abcdefghi[ARGS]{{}}", CHECKS, "Hm", [call(), call("{}", "clock")]),
    "mistral, no call": ("mistral", "", "[TOOL_CALLS] are [1]", "[TOOL_CALLS] are [1]", "", []),
    "deepseek": ("deepseek", "<think>\n", f'Hm\n</think>\n\n{CHECKS}{BEGIN}{CALL}function{SEPARATOR}weather\n```json\n{BOTH}\n```{CALL_END}\n{CALL}function{SEPARATOR}clock\n```json\n{{}}\n```{CALL_END}{END}', CHECKS, "Hm", [call(), call("{}", "clock")]),
    "deepseek 3.1": ("deepseek", "</think>", f"{BEGIN}{CALL}weather{SEPARATOR}{BOTH}{CALL_END}{CALL}clock{SEPARATOR}{{}}{CALL_END}{END}", "", "", [call(), call("{}", "clock")]),
    "deepseek, fence inside": ("deepseek", "", f'{BEGIN}{CALL}function{SEPARATOR}weather\n```json\n{{"place": "```{CALL_END}"}}\n```{CALL_END}{END}', "", "", [call(f'{{"place": "```{CALL_END}"}}')]),
    "deepseek, no call": ("deepseek", "", f"{BEGIN}{CALL}x y{END}", f"{BEGIN}{CALL}x y{END}", "", []),
    "harmony": ("harmony", "<|start|>assistant", f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>{CHECKS}<|end|><|start|>assistant{HARMONY}{BOTH}<|call|>", CHECKS, "Hm.", [call()]),
    "harmony, final": ("harmony", "", "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi.\n", "Hi.\n", "Hm.", []),
    "harmony, role first": ("harmony", "", f" to=functions.weather<|channel|>commentary json<|message|>{BOTH}", "", "", [call()]),
    "harmony, mark inside": ("harmony", "", HARMONY + '{"place": "<|end|>"}<|call|>', "", "", [call('{"place": "<|end|>"}')]),
    "harmony, own tool": ("harmony", "", "<|channel|>analysis to=python code<|message|>1+1<|call|>", "", "1+1", []),
    "harmony, no header": ("harmony", "", "Just text <|chan", "Just text <|chan", "", []),
    "harmony, no JSON": ("harmony", "", HARMONY + "hello", "hello", "", []),
    "muse": ("muse", "<|start|>assistant", f"{MUSE_THINKS} to=user<|message|>{CHECKS}<|eom|><|start|>assistant{MUSE}{MUSE_CLOCK}<|eot|>", CHECKS, "Hm", [call(), call("{}", "clock")]),
    "muse, content": ("muse", "<|start|>assistant", f"{MUSE_THINKS}<|message|>A <atem:function_calls> \n<|eom|><|start|>assistant to=user<|message|>B<|eot|>", "A <atem:function_calls> \n\n\nB", "Hm", []),
    "muse, no header": ("muse", "", " to=you: assistant <|mess", " to=you: assistant <|mess", "", []),
    "muse, thinks to the end": ("muse", "", " to=self<|message|>Hm<|start|>assistant<|message|>Hi", "Hi", "Hm", []),
    "muse, cut": ("muse", "", MUSE[: MUSE.index("ürich")], "", "", [call('{"place": "Z"}', complete=False)]),
    "cohere": ("cohere", "<|START_THINKING|>", f'Hm<|END_THINKING|><|START_ACTION|>[\n    {{"tool_call_id": "0", "tool_name": "weather", "parameters": {BOTH}}},\n    {{"tool_call_id": "1", "tool_name": "clock", "parameters": {{}}}}\n]<|END_ACTION|>', "", "Hm", [call(), call("{}", "clock")]),
    "cohere, response": ("cohere", "<|START_THINKING|><|END_THINKING|>", "<|START_RESPONSE|>Hi\n[1]<|END_RESPONSE|>", "Hi\n[1]", "", []),
    "cohere, no call": ("cohere", "", "<|START_ACTION|>[1]", "<|START_ACTION|>[1]", "", []),
    "kimi": ("kimi", "", f"<think>Hm</think>{CHECKS}{KIMI}<|tool_call_begin|>functions.clock:1<|tool_call_argument_begin|>{{}}<|tool_call_end|><|tool_calls_section_end|>", CHECKS, "Hm", [call(), call("{}", "clock")]),
    "kimi, no number": ("kimi", "", "<|tool_call_begin|>clock<|tool_call_argument_begin|>{}<|tool_call_end|>", "", "", [call("{}", "clock")]),
    "kimi, no call": ("kimi", "", "<|tool_calls_section_begin|> is a mark", "<|tool_calls_section_begin|> is a mark", "", []),
    "kimi k3": ("kimi_k3", "<|open|>think<|sep|>", f"Hm<|close|>think<|sep|>{SAID}{CHECKS}{UNSAID}{K3}{K3_CLOCK}<|close|>message<|sep|>", CHECKS, "Hm", [call(), call("{}", "clock")]),
    "kimi k3, content": ("kimi_k3", SAID, f"Hi {UNSAID}<|close|>message<|sep|>", "Hi", "", []),
    "kimi k3, no end of reasoning": ("kimi_k3", "<|open|>think<|sep|>", f"Hm{SAID}Hi{UNSAID}", "Hi", "Hm", []),
    "kimi k3, types": ("kimi_k3", "", '<|open|>call tool="clock"<|sep|><|open|>argument key="a&quot;&amp;" type="array"<|sep|>["é", {"b": null}]<|close|>argument<|sep|><|open|>argument key="b" type="string"<|sep|>[1]<|close|>argument<|sep|><|open|>argument key="c"<|sep|>x y<|close|>argument<|sep|><|close|>call<|sep|>', "", "", [call('{"a\\"&": ["é", {"b": null}], "b": "[1]", "c": "x y"}', "clock")]),
    "kimi k3, cut": ("kimi_k3", "", K3[: K3.index("ürich")], "", "", [call('{"place": "Z"}', complete=False)]),
    "kimi k3, no call": ("kimi_k3", "", "<|open|>tools<|sep|> is a mark", "<|open|>tools<|sep|> is a mark", "", []),
    "gemma 4": ("gemma4", "", f"<|channel>thought\nHm\n<channel|>{CHECKS}{GEMMA}<|tool_call>call:clock{{}}<tool_call|>", CHECKS, "Hm", [call('{"days":2,"near":{"k":true},"place":"a \\"b\\"\\n"}'), call("{}", "clock")]),
    "gemma 4, cut": ("gemma4", "", GEMMA[: GEMMA.index("true")], "", "", [call('{"days":2,"near":{}}', complete=False)]),
    "gemma 4, odd keys": ("gemma4", "", "<|tool_call>call:clock{a\\x:1,b\x01:2}<tool_call|>", "", "", [call('{"a\\\\x":1,"b\\u0001":2}', "clock")]),
    "gemma": ("gemma", "", '```tool_code\nprint(weather("Zürich", days=2))\nclock()\n```', "", "", [call(), call("{}", "clock")]),
    "gemma, fence inside": ("gemma", "", "Hi\n```tool_code\nweather(place='```')\n```", "Hi", "", [call('{"place": "```"}')]),
    "gemma, pattern": ("gemma", "", '```tool_code\nweather(place="\\d")\n```', "", "", [call('{"place": "\\\\d"}')]),
    "gemma, code": ("gemma", "", "```tool_code\nimport os\n```\nx", "```tool_code\nimport os\n```\nx", "", []),
    "granite": ("granite", "", f'<|tool_call|>[{{"name": "weather", "arguments": {BOTH}}}]', "", "", [call()]),
    "granite, response": ("granite", "", "<think>Hm</think><response>Hi\n</response>", "Hi", "Hm", []),
    "granite, spoken": ("granite", "", "A <response> tag", "A <response> tag", "", []),
    "nemotron": ("nemotron", "<think>\n", f'Hm\n</think>\n\n{CHECKS}\n<TOOLCALL>[{{"name": "weather", "arguments": {BOTH}}}, {{"name": "clock", "arguments": {{}}}}]</TOOLCALL>\n', CHECKS, "Hm", [call(), call("{}", "clock")]),
    "nemotron, no call": ("nemotron", "", "The tag <TOOLCALL>[1]</TOOLCALL>.", "The tag <TOOLCALL>[1]</TOOLCALL>.", "", []),
    "generic, fence": ("generic", "", f'{CHECKS}\n\n```json\n{{"name": "weather", "arguments": {BOTH}}}\n```\n', CHECKS, "", [call()]),
    "generic, list": ("generic", "", '[{"name": "clock", "parameters": {}}, {"name": "clock"}]', "", "", [call("{}", "clock")] * 2),
    "generic, JSON": ("generic", "", 'So:\n```json\n{"a": [1]}\n```\n[1, 2]', 'So:\n```json\n{"a": [1]}\n```\n[1, 2]', "", []),
    "generic, tags": ("generic", "", HERMES, "", "", [call()]),
    "lfm2": ("lfm2", "", f'{CHECKS}<|tool_call_start|>[weather(place="Zürich", days=2), clock()]<|tool_call_end|>', CHECKS, "", [call(), call("{}", "clock")]),
    "lfm2, thinks": ("lfm2", "", "<think>Hm <|tool_call_start|></think><|tool_call_start|>[clock()]<|tool_call_end|>So", "So", "Hm <|tool_call_start|>", [call("{}", "clock")]),
    "lfm2, Python's values": ("lfm2", "", "<|tool_call_start|>[weather(near={'k': True, \"l\": [None, false, 'x']}, place='a\\'b\\n\\x41\\u00e9\\U0001F600\\d')]<|tool_call_end|>", "", "", [call('{"near": {"k": true, "l": [null, false, "x"]}, "place": "a\'b\\nA\\u00e9\\ud83d\\ude00\\\\d"}')]),
    "lfm2, quotes as they are": ("lfm2", "", "<|tool_call_start|>[weather(place='say \"it's, or 'x'', days=2), weather(place='''a'b''')]<|tool_call_end|>", "", "", [call('{"place": "say \\"it\'s, or \'x\'", "days": 2}'), call('{"place": "a\'b"}')]),
    "lfm2, many lines": ("lfm2", "", '<|tool_call_start|>[\n weather(\n  place="a\nb",\n ),\n]<|tool_call_end|>', "", "", [call('{"place": "a\\nb"}')]),
    "lfm2, no names": ("lfm2", "", "<|tool_call_start|>[weather('Zürich', 2)]<|tool_call_end|>", "", "", [call()]),
    "lfm2, a key twice": ("lfm2", "", "<|tool_call_start|>[weather(days=1, days=2)]<|tool_call_end|>", "", "", [call('{"days": 1}')]),
    "lfm2, too many without names": ("lfm2", "", "<|tool_call_start|>[clock(1)]<|tool_call_end|>", "1)]<|tool_call_end|>", "", [call("{}", "clock", complete=False)]),
    "lfm2, JSON": ("lfm2", "", f'<|tool_call_start|>[{{"name": "weather", "arguments": {BOTH}}}, {{"name": "clock"}}]<|tool_call_end|>', "", "", [call(), call("{}", "clock")]),
    "lfm2, no call": ("lfm2", "", "<|tool_call_start|>[1, 2]<|tool_call_end|>", "<|tool_call_start|>[1, 2]<|tool_call_end|>", "", []),
    "lfm2, cut in a text": ("lfm2", "", "<|tool_call_start|>[weather(days=2, place='Zür\\u00", "", "", [call('{"days": 2, "place": "Zür"}', complete=False)]),
    "lfm2, cut in a key": ("lfm2", "", "<|tool_call_start|>[weather(days=2, pla", "", "", [call('{"days": 2}', complete=False)]),
    "lfm2, cut in a number": ("lfm2", "", "<|tool_call_start|>[weather(days=2", "", "", [call("{}", complete=False)]),
    "lfm2, broken": ("lfm2", "", "<|tool_call_start|>[weather(days=two)] So", "two)] So", "", [call("{}", complete=False)]),
    "olmo 3": ("olmo3", "<think>", "Hm</think><function_calls>\nweather(place='Zürich', days=2)\nclock()\n</function_calls>", "", "Hm", [call(), call("{}", "clock")]),
    "olmo 3, no call": ("olmo3", "", "<function_calls>\nnone\n</function_calls>", "<function_calls>\nnone\n</function_calls>", "", []),
    "minimax": ("minimax", "<think>\n", 'Hm\n</think>\n\n' + CHECKS + '\n<minimax:tool_call>\n<invoke name="weather">\n<parameter name="place">a</parameter>\n b "</parameter>\n<parameter name="near">{"k": true}</parameter>\n</invoke>\n<invoke name="clock">\n</invoke>\n</minimax:tool_call>', CHECKS, "Hm", [call('{"place": "a</parameter>\\n b \\"", "near": {"k": true}}'), call("{}", "clock")]),
    "minimax, no call": ("minimax", "", "<minimax:tool_call> x <invoke name=\"", "<minimax:tool_call> x <invoke name=\"", "", []),
    "minimax, cut": ("minimax", "", '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="place">Z</para', "", "", [call('{"place": "Z</para"}', complete=False)]),
    "minimax m3": ("minimax_m3", "", f"<mm:think>Hm</mm:think>{CHECKS}{M3}{M3_CLOCK}", CHECKS, "Hm", [call(), call("{}", "clock")]),
    "minimax m3, not thought": ("minimax_m3", "", f"</mm:think>\n\n{CHECKS} </mm:think>", f"{CHECKS} </mm:think>", "", []),
    "minimax m3, one inside of the other": ("minimax_m3", "</mm:think>", M3_CLOCK.replace('">', '">]<]minimax[>[<a>]<]minimax[>[<item>1]<]minimax[>[</item>\n]<]minimax[>[<item>]<]minimax[>[<b>x "y" ]<]minimax[>[</b>]<]minimax[>[<b>z]<]minimax[>[</b>]<]minimax[>[</item>]<]minimax[>[</a>]<]minimax[>[<c>[1]]<]minimax[>[</c>]<]minimax[>[<d>]<]minimax[>[</d>'), "", "", [call('{"a": [1, {"b": "x \\"y\\" "}], "c": [1], "d": ""}', "clock")]),
    "minimax m3, an object": ("minimax_m3", "", ']<]minimax[>[<invoke name="weather">]<]minimax[>[<place> ]<]minimax[>[<item>a]<]minimax[>[</place>]<]minimax[>[<near>]<]minimax[>[<k>true]<]minimax[>[</k>]<]minimax[>[</near>]<]minimax[>[</invoke> So', "So", "", [call('{"place": " ]<]minimax[>[<item>a", "near": {"k": true}}')]),
    "minimax m3, cut": ("minimax_m3", "", ']<]minimax[>[<invoke name="weather">]<]minimax[>[<near>]<]minimax[>[<k>tr', "", "", [call('{"near": {}}', complete=False)]),
    "minimax m3, broken": ("minimax_m3", "", f"{M3[: M3.index('2]<')]}2]<]minimax[>[</place>]<]minimax[>[</days> So]<]minimax[>[</invoke>", " So]<]minimax[>[</invoke>".strip(), "", [call('{"place": "Zürich", "days": "2]<]minimax[>[</place>"}', complete=False)]),
    "minimax m3, no call": ("minimax_m3", "", "]<]minimax[>[<tool_call> is a mark", "]<]minimax[>[<tool_call> is a mark", "", []),
    "dsml": ("dsml", "<think>", f'Hm</think>{CHECKS}\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="weather">\n<｜DSML｜parameter name="place" string="true">2</｜DSML｜parameter>\n<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name="clock">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>', CHECKS, "Hm", [call('{"place": "2", "days": 2}'), call("{}", "clock")]),
    "dsml, values": ("dsml", "", '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="clock">\n<｜DSML｜parameter name="a" string="false">["é", {"b": null}]</｜DSML｜parameter>\n<｜DSML｜parameter name="b" string="true">[1]</｜DSML｜parameter>\n<｜DSML｜parameter name="c" string="false">"x"</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>', "", "", [call('{"a": ["é", {"b": null}], "b": "[1]", "c": "x"}', "clock")]),
    "hy3": ("hy3", "<think:opensource>", f"Hm</think:opensource>{CHECKS}<tool_calls:opensource>\n<tool_call:opensource>weather<tool_sep:opensource>\n<arg_key:opensource>place</arg_key:opensource>\n<arg_value:opensource>Zürich</arg_value:opensource>\n<arg_key:opensource>days</arg_key:opensource>\n<arg_value:opensource>2</arg_value:opensource>\n</tool_call:opensource>\n<tool_call:opensource>clock<tool_sep:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>", CHECKS, "Hm", [call(), call("{}", "clock")]),
    "solar": ("solar", "<|begin|>assistant", f"<|think|>Hm<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>abc<|tool_call:name|>weather<|tool_call:args|>{BOTH}<|tool_call:end|><|tool_call:begin|>abd<|tool_call:name|>clock<|tool_call:args|>{{}}<|tool_call:end|><|calls|>", "", "Hm", [call(), call("{}", "clock")]),
    "solar, content": ("solar", "<|begin|>assistant", "<|think|>Hm<|end|><|begin|>assistant<|content|>Hi\n<|end|>", "Hi", "Hm", []),
    "solar, no call": ("solar", "", "<|tool_call:begin|>abc", "<|tool_call:begin|>abc", "", []),
    "apertus": ("apertus", "", f'<|inner_prefix|>Hm<|inner_suffix|>{CHECKS}<|tools_prefix|>[{{"weather": {BOTH}}}, {{"clock": {{}}}}]<|tools_suffix|>', CHECKS, "Hm", [call(), call("{}", "clock")]),
    "apertus, no call": ("apertus", "", '<|tools_prefix|>[{"weather": 1}]', '<|tools_prefix|>[{"weather": 1}]', "", []),
    "tool_calls": ("tool_calls", "", f'<think>Hm</think>{CHECKS}\n<tool_calls>[{{"name": "weather", "arguments": {BOTH}, "id": "x"}}, {{"name": "clock", "arguments": {{}}}}]</tool_calls>', CHECKS, "Hm", [call(), call("{}", "clock")]),
    "tool_calls, a line for each": ("tool_calls", "", f'<tool_calls>\n{{"name": "weather", "arguments": {BOTH}}}\n{{"name": "clock", "arguments": {{}}}}\n</tool_calls>\nSo', "So", "", [call(), call("{}", "clock")]),
    "tool_calls, no call": ("tool_calls", "", "Write <tool_calls> and </tool_calls>", "Write <tool_calls> and </tool_calls>", "", []),
    "internlm": ("internlm", "", f'{CHECKS}<|action_start|><|plugin|>\n{{"name": "weather", "parameters": {BOTH}}}<|action_end|>\n', CHECKS, "", [call()]),
    "gigachat": ("gigachat", "", f'{CHECKS}<|message_sep|>\n\nfunction call<|role_sep|>\n{{"name": "weather", "arguments": {BOTH}}}<|message_sep|>', CHECKS, "", [call()]),
    "gigachat 3.1": ("gigachat", "", f'{CHECKS}<|function_call|>{{"name": "weather", "arguments": {BOTH}}}', CHECKS, "", [call()]),
    "gigachat, spoken": ("gigachat", "", "A function call is <|function_call|> it", "A function call is <|function_call|> it", "", []),
    "firefunction": ("firefunction", "", f'{CHECKS} functools[{{"name": "weather", "arguments": {BOTH}}}, {{"name": "clock", "arguments": {{}}}}]', CHECKS, "", [call(), call("{}", "clock")]),
    "firefunction, spoken": ("firefunction", "", "import functools\nfunctools.partial(f)", "import functools\nfunctools.partial(f)", "", []),
    "command_r": ("command_r", "", f'Action:\n```json\n[\n    {{\n        "tool_name": "weather",\n        "parameters": {BOTH}\n    }},\n    {{"tool_name": "clock", "parameters": {{}}}}\n]```', "", "", [call(), call("{}", "clock")]),
    "command_r, no call": ("command_r", "", "Action:\n```json\n[1]\n```", "Action:\n```json\n[1]\n```", "", []),
    "functiongemma": ("functiongemma", "", 'Hi<start_function_call>call:weather{days:2,place:<escape>a "b", {c}<escape>}<end_function_call><start_function_call>call:clock{}<end_function_call>', "Hi", "", [call('{"days":2,"place":"a \\"b\\", {c}"}'), call("{}", "clock")]),
    "functionary": ("functionary", "", f"{CHECKS}<function=weather>{BOTH}</function><function=clock>{{}}</function>", CHECKS, "", [call(), call("{}", "clock")]),
    "functionary, no call": ("functionary", "", "<function=weather> it", "<function=weather> it", "", []),
    "recipients": ("recipients", ">>>", f"all\n{CHECKS}>>>weather\n{BOTH}\n>>>clock\n{{}}", CHECKS, "", [call(), call("{}", "clock")]),
    "recipients, content": ("recipients", ">>>", "all\n>>> 1 + 1\n>>>word\n2", ">>> 1 + 1\n>>>word\n2", "", []),
    "recipients, a mark first": ("recipients", "", f">>>weather\n{BOTH}", "", "", [call()]),
    "seed, Python's values": ("seed", "", "<seed:tool_call>\n<function=weather>\n<parameter=near>{'k': True}</parameter>\n</function>\n</seed:tool_call>", "", "", [call('{"near": {"k": true}}')]),
    "llama, a list": ("llama3", "", "[weather(place='Zürich', days=2), clock()]", "", "", [call(), call("{}", "clock")]),
    "gemma, a list": ("gemma", "", '[weather(place="Zürich", days=2)]\n[later(x=1)]', "[later(x=1)]", "", [call()]),
}  # fmt: skip
# What `call_grammar` must allow, and how the model's tokenizer shows it, is the same text.
FORCED: dict[str, tuple[Dialect, str]] = {
    "hermes": (DIALECTS["hermes"](), f"{HERMES}\n{CLOCK}"),
    "generic": (DIALECTS["generic"](), f"<think>a b\n</think>\n\n{HERMES}"),
    "qwen_coder": (DIALECTS["qwen_coder"](), f'{CODER}<parameter=near>\n{{"k": true}}\n</parameter>\n</function>\n</tool_call>'),
    "seed": (DIALECTS["seed"](), CODER.replace("tool_call", "seed:tool_call") + "</function>\n</seed:tool_call>"),
    "glm": (DIALECTS["glm"](), "<tool_call>weather\n<arg_key>place</arg_key>\n<arg_value>a<b</arg_value>\n</tool_call>\n<tool_call>clock\n</tool_call>"),
    "minicpm": (DIALECTS["minicpm"](), '<function name="weather"><param name="place">Z</param><param name="days">2</param></function>'),
    "llama3": (DIALECTS["llama3"](), f'{{"name": "weather", "parameters": {BOTH}}}'),
    "llama4, a list": (Llama4(lists=True), '[weather(place="Z", days=2), clock()]'),
    "llama4": (DIALECTS["llama4"](), f'{{"name": "weather", "parameters": {BOTH}}}'),
    "gemma": (DIALECTS["gemma"](), '{"name": "clock", "parameters": {}}'),
    "gemma4": (DIALECTS["gemma4"](), GEMMA + "<|tool_call>call:clock{}<tool_call|>"),
    "granite": (DIALECTS["granite"](), f'<|tool_call|>[{{"name": "weather", "arguments": {BOTH}}}, {{"name": "clock", "arguments": {{}}}}]'),
    "nemotron": (DIALECTS["nemotron"](), f'<think>a</think><TOOLCALL>[{{"name": "weather", "arguments": {BOTH}}}, {{"name": "clock", "arguments": {{}}}}]</TOOLCALL>'),
    "mistral": (Mistral(), f"[THINK]x[/THINK][TOOL_CALLS]weather[ARGS]{BOTH}[TOOL_CALLS]clock[ARGS]{{}}"),
    "mistral, old": (Mistral(named=False), f'[TOOL_CALLS][{{"name": "weather", "arguments": {BOTH}}}]'),
    "deepseek": (DeepSeek(), f"<think>x</think>{BEGIN}{CALL}function{SEPARATOR}weather\n```json\n{BOTH}\n```{CALL_END}{END}"),
    "deepseek 3.1": (DeepSeek(fenced=False), f"{BEGIN}{CALL}weather{SEPARATOR}{BOTH}{CALL_END}{CALL}clock{SEPARATOR}{{}}{CALL_END}{END}"),
    "cohere": (DIALECTS["cohere"](), f'<|START_THINKING|>x<|END_THINKING|><|START_ACTION|>[{{"tool_name": "weather", "parameters": {BOTH}}}, {{"tool_name": "clock", "parameters": {{}}}}]<|END_ACTION|>'),
    "kimi": (DIALECTS["kimi"](), f"<think>x</think>{KIMI}<|tool_call_begin|>functions.clock:1<|tool_call_argument_begin|>{{}}<|tool_call_end|><|tool_calls_section_end|>"),
    "kimi_k3": (DIALECTS["kimi_k3"](), f"<|open|>think<|sep|>x<|close|>think<|sep|>{SAID}{UNSAID}{K3.removesuffix('<|close|>call<|sep|>')}<|open|>argument key=\"near\" type=\"object\"<|sep|>{{\"k\": true}}<|close|>argument<|sep|><|close|>call<|sep|>{K3_CLOCK}"),
    "minimax_m3": (DIALECTS["minimax_m3"](), f"<mm:think>x</mm:think>{M3.replace(']<]minimax[>[</invoke>', ']<]minimax[>[<near>]<]minimax[>[<k>true]<]minimax[>[</k>]<]minimax[>[</near>]<]minimax[>[</invoke>')}{M3_CLOCK}"),
    "firefunction": (DIALECTS["firefunction"](), f'functools[{{"name": "weather", "arguments": {BOTH}}}, {{"name": "clock", "arguments": {{}}}}]'),
    "muse": (DIALECTS["muse"](), f"{MUSE_THINKS}{MUSE}{MUSE_CLOCK}"),
    "harmony": (DIALECTS["harmony"](), f"<|channel|>analysis<|message|>Hm<|end|><|start|>assistant{HARMONY}{BOTH}"),
    "lfm2": (DIALECTS["lfm2"](), '<|tool_call_start|>[weather(place="Z\\n\\u00fc", days=2, near={"k": true}), clock()]<|tool_call_end|>'),
    "olmo3": (DIALECTS["olmo3"](), '<function_calls>\nweather(place="Z")\nclock()\n</function_calls>'),
    "minimax": (DIALECTS["minimax"](), '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="place">Z</parameter>\n<parameter name="days">2</parameter>\n</invoke>\n<invoke name="clock">\n</invoke>\n</minimax:tool_call>'),
    "dsml": (DIALECTS["dsml"](), '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="weather">\n<｜DSML｜parameter name="place" string="true">Z</｜DSML｜parameter>\n<｜DSML｜parameter name="near" string="false">{"k": true}</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name="clock">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>'),
    "hy3": (DIALECTS["hy3"](), "<tool_calls:opensource>\n<tool_call:opensource>weather<tool_sep:opensource>\n<arg_key:opensource>place</arg_key:opensource>\n<arg_value:opensource>Z</arg_value:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>"),
    "solar": (DIALECTS["solar"](), f"<|think|>x<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>abcdefghij<|tool_call:name|>weather<|tool_call:args|>{BOTH}<|tool_call:end|>"),
    "apertus": (DIALECTS["apertus"](), f'<|inner_prefix|>x<|inner_suffix|><|tools_prefix|>[{{"weather": {BOTH}}}, {{"clock": {{}}}}]<|tools_suffix|>'),
    "tool_calls": (DIALECTS["tool_calls"](), f'<tool_calls>[{{"name": "weather", "arguments": {BOTH}}}, {{"name": "clock", "arguments": {{}}}}]</tool_calls>'),
    "internlm": (DIALECTS["internlm"](), f'<|action_start|><|plugin|>\n{{"name": "weather", "parameters": {BOTH}}}<|action_end|>'),
    "gigachat": (GigaChat(message=True), f'function call<|role_sep|>\n{{"name": "weather", "arguments": {BOTH}}}'),
    "gigachat 3.1": (GigaChat(), f'<|function_call|>{{"name": "weather", "arguments": {BOTH}}}'),
    "command_r": (DIALECTS["command_r"](), f'Action:\n```json\n[{{"tool_name": "weather", "parameters": {BOTH}}}, {{"tool_name": "clock", "parameters": {{}}}}]\n```'),
    "functiongemma": (DIALECTS["functiongemma"](), "<start_function_call>call:weather{days:2,place:<escape>Z<escape>}<end_function_call>"),
    "functionary": (DIALECTS["functionary"](), f"<function=weather>{BOTH}</function><function=clock>{{}}</function>"),
    "recipients": (DIALECTS["recipients"](), f"weather\n{BOTH}>>>clock\n{{}}"),
}  # fmt: skip


def pieces(text: str, cuts: list[int]) -> Iterator[str]:
    """Yield a text in pieces. Cuts may repeat or lie outside it."""
    places = sorted({0, len(text), *(cut for cut in cuts if 0 < cut < len(text))})
    for begin, end in pairwise(places):
        yield text[begin:end]


def read(dialect: Dialect, parts: Iterator[str] | list[str], prompt: str = "") -> Reply:
    """Parse an answer in pieces. Call ids are counted."""
    numbers = count()
    parser = dialect.parser(TOOLS, prompt=prompt, new_id=lambda: f"id{next(numbers)}")
    reply = Reply()
    for part in parts:
        reply.add(parser.push(part))
    return reply.add(parser.finish())
