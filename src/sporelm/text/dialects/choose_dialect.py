"""Selection of a model's dialect by the markers in its chat template, or by its special tokens."""

from collections.abc import Callable
from dataclasses import replace

from sporelm.text.dialects.apertus import INNER, Apertus
from sporelm.text.dialects.cohere import ACTIONS, Cohere
from sporelm.text.dialects.deepseek import BEGIN, SEPARATOR, DeepSeek
from sporelm.text.dialects.dialect import RESPONSE, THINK, Dialect, Thinking
from sporelm.text.dialects.functionary import Functionary, Recipients
from sporelm.text.dialects.gemma4 import CHANNELS, FunctionGemma, Gemma4
from sporelm.text.dialects.generic import Gemma, Generic
from sporelm.text.dialects.glm import Glm
from sporelm.text.dialects.granite import Granite
from sporelm.text.dialects.harmony import Harmony
from sporelm.text.dialects.hermes import Hermes
from sporelm.text.dialects.hy3 import Hy3, find_suffix
from sporelm.text.dialects.invoke import Dsml, MiniMax
from sporelm.text.dialects.json_block import CommandR, FireFunction, GigaChat, InternLm, Nemotron, ToolCalls
from sporelm.text.dialects.kimi import Kimi
from sporelm.text.dialects.kimi_k3 import KimiK3
from sporelm.text.dialects.llama3 import Llama3
from sporelm.text.dialects.llama4 import START, Llama4
from sporelm.text.dialects.minicpm import MiniCpm
from sporelm.text.dialects.minimax_m3 import THINKS as MINIMAX_THINK
from sporelm.text.dialects.minimax_m3 import MiniMaxM3
from sporelm.text.dialects.mistral import BRACKETS, Mistral
from sporelm.text.dialects.muse import Muse
from sporelm.text.dialects.pythonic import Lfm2, Olmo3
from sporelm.text.dialects.qwen_coder import SEED_THINK, QwenCoder, Seed
from sporelm.text.dialects.solar import Solar
from sporelm.text.tokenizers.tokenizer import Tokenizer

DIALECTS: dict[str, type[Dialect]] = {
    each.name: each
    for each in (
        Harmony, Muse, DeepSeek, Dsml, Kimi, KimiK3, Cohere, CommandR, Mistral, Gemma4, FunctionGemma, QwenCoder, Seed,
        Glm, Hy3, MiniCpm, MiniMax, MiniMaxM3, Solar, Apertus, Granite, Nemotron, ToolCalls, InternLm, GigaChat,
        FireFunction, Lfm2, Olmo3, Hermes, Functionary, Recipients, Llama3, Llama4, Gemma, Generic,
    )
}  # fmt: skip
STEPS = Thinking("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]")  # Apriel
THOUGHTS = (ACTIONS, STEPS, INNER, THINK, BRACKETS, CHANNELS, SEED_THINK, MINIMAX_THINK)

_Test = Callable[[str], bool]


def _has(*markers: str) -> _Test:
    return lambda source: all(marker in source for marker in markers)


# The first whose markers are all in the template. DeepSeek V3.1 has no fence; old Mistral writes an array.
_BY_TEMPLATE: tuple[tuple[_Test, Callable[[Thinking | None], Dialect]], ...] = (
    (_has("<|channel|>", "<|message|>"), lambda thinking: Harmony()),
    (_has("<atem:function_calls>", "<|message|>"), Muse),
    (_has("｜DSML｜", "function_calls>"), lambda thinking: Dsml(thinking, word="function_calls")),
    (_has("｜DSML｜"), Dsml),
    (_has(BEGIN, "```json"), lambda thinking: DeepSeek(thinking, fenced=True)),
    (_has(SEPARATOR), lambda thinking: DeepSeek(thinking, fenced=False)),
    (_has("<|tool_calls_section_begin|>"), Kimi),
    (_has("<|open|>", "<|close|>", "<|sep|>"), lambda thinking: KimiK3()),
    (_has("<|START_ACTION|>"), Cohere),
    (_has("Action:", "tool_name", "<|CHATBOT_TOKEN|>"), lambda thinking: CommandR(thinking)),
    (_has("[TOOL_CALLS]", "[ARGS]"), lambda thinking: Mistral(thinking, named=True)),
    (_has("[TOOL_CALLS]"), lambda thinking: Mistral(thinking, named=False)),
    (_has("<|tool_call>"), lambda thinking: Gemma4(thinking or CHANNELS)),
    (_has("<start_function_call>"), lambda thinking: FunctionGemma()),
    (_has("<|tool_call:begin|>"), lambda thinking: Solar()),
    (_has("<|tools_prefix|>"), lambda thinking: Apertus(thinking or INNER)),
    (_has("<|function_call|>", "<|role_sep|>"), lambda thinking: GigaChat()),
    (_has("function call", "<|role_sep|>"), lambda thinking: GigaChat(message=True)),
    (_has("<minimax:tool_call>"), MiniMax),
    (_has("]<]minimax[>[", "<invoke name="), MiniMaxM3),
    (_has("functools["), FireFunction),
    (_has("<seed:tool_call>"), Seed),
    (_has("<function=", "<parameter="), QwenCoder),
    (_has("<arg_key>"), Glm),
    (_has("<function name="), MiniCpm),
    (_has("<|tool_call|>"), Granite),
    (_has("<TOOLCALL>"), Nemotron),
    (_has("<|tool_call_start|>"), lambda thinking: Lfm2(thinking or THINK)),
    (_has("<|tool_list_start|>"), lambda thinking: Lfm2(thinking or THINK)),
    (_has("<|action_start|>"), InternLm),
    (_has("<function_calls>"), Olmo3),
    (_has("<tool_calls>"), lambda thinking: ToolCalls(thinking or THINK)),
    (_has("<tool_call>"), Hermes),
    (_has(">>>all"), lambda thinking: Recipients()),
    (_has("<function=", "</function>"), Functionary),
    (_has("<|header_start|>", "[func_name1("), lambda thinking: Llama4(thinking, lists=True)),
    (_has("<|header_start|>", START), Llama4),
    (_has("<|python_tag|>"), Llama3),
    (_has('{"name": function name, "parameters":'), Llama3),
    (_has("<start_of_turn>"), Gemma),
)
# Where the template says nothing of calls, special tokens may. Qwen's are in vocabularies of models without calls.
_BY_TOKEN: tuple[tuple[str, str, Callable[[Thinking | None], Dialect]], ...] = (
    ("<|python_tag|>", "<|start_header_id|>", Llama3),
    (START, "<|header_start|>", Llama4),
    ("<|START_ACTION|>", "<|CHATBOT_TOKEN|>", Cohere),
    ("[TOOL_CALLS]", "[INST]", Mistral),
    (SEPARATOR, "<｜User｜>", DeepSeek),
    ("<|tool_call|>", "<|start_of_role|>", Granite),
    ("<|tool_call_start|>", "<|im_start|>", lambda thinking: Lfm2(thinking or THINK)),
    ("<|action_start|>", "<|im_start|>", InternLm),
)


def _thinking(source: str) -> Thinking | None:
    """How a template markers reasoning, and what is said after it: Hunyuan's say less than their models write."""
    thinking = next((each for each in THOUGHTS if each.open in source or each.close in source), None)
    if any(marker in source for marker in ("<answer>", "<|extra_0|>", "hy_Assistant")):
        return replace(thinking or THINK, answer=("<answer>", "</answer>"))
    if thinking is not None and _has(*RESPONSE, "<tool_call>")(source):  # ERNIE
        return replace(thinking, answer=RESPONSE)
    return thinking


def choose_dialect(template_source: str | None, tokenizer: Tokenizer | None = None) -> Dialect:
    """Return a model's dialect by markers in its chat template or its vocabulary; without a marker the generic one."""
    source = template_source or ""
    thinking = _thinking(source)
    if (suffix := find_suffix(source)) is not None:
        return Hy3(suffix=suffix)
    for fits, make in _BY_TEMPLATE:
        if fits(source):
            return make(thinking)
    if tokenizer is not None:
        control = tokenizer.special.control
        for token, beside, make in _BY_TOKEN:
            if beside in source and any(tokenizer.id_to_piece(each) == token for each in control):
                return make(thinking)
    return Generic(thinking or THINK)
