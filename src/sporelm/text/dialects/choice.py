"""Which dialect a model speaks: what its chat template writes, it was trained on."""

from collections.abc import Callable

from sporelm.text.dialects.cohere import ACTIONS, Cohere
from sporelm.text.dialects.deepseek import BEGIN, SEPARATOR, DeepSeek
from sporelm.text.dialects.dialect import THINK, Dialect, Thinking
from sporelm.text.dialects.gemma4 import CHANNELS, Gemma4
from sporelm.text.dialects.generic import Gemma, Generic
from sporelm.text.dialects.glm import Glm
from sporelm.text.dialects.granite import Granite
from sporelm.text.dialects.harmony import Harmony
from sporelm.text.dialects.hermes import Hermes
from sporelm.text.dialects.kimi import Kimi
from sporelm.text.dialects.llama3 import Llama3
from sporelm.text.dialects.llama4 import START, Llama4
from sporelm.text.dialects.minicpm import MiniCpm
from sporelm.text.dialects.mistral import BRACKETS, Mistral
from sporelm.text.dialects.nemotron import OPENING, Nemotron
from sporelm.text.dialects.qwen_coder import SEED_THINK, QwenCoder, Seed
from sporelm.text.tokenizer import Tokenizer

DIALECTS: dict[str, type[Dialect]] = {
    each.name: each
    for each in (
        Harmony, DeepSeek, Kimi, Cohere, Mistral, Gemma4, QwenCoder, Seed, Glm, MiniCpm, Granite, Nemotron, Hermes,
        Llama3, Llama4, Gemma, Generic,
    )
}  # fmt: skip
THOUGHTS = (ACTIONS, THINK, BRACKETS, CHANNELS, SEED_THINK)

_Test = Callable[[str], bool]


def _has(*marks: str) -> _Test:
    return lambda source: all(mark in source for mark in marks)


# The first whose marks are all in the template. DeepSeek V3.1 has no fence; old Mistral writes an array.
_BY_TEMPLATE: tuple[tuple[_Test, Callable[[Thinking | None], Dialect]], ...] = (
    (_has("<|channel|>", "<|message|>"), lambda thinking: Harmony()),
    (_has(BEGIN, "```json"), lambda thinking: DeepSeek(thinking, fenced=True)),
    (_has(SEPARATOR), lambda thinking: DeepSeek(thinking, fenced=False)),
    (_has("<|tool_calls_section_begin|>"), Kimi),
    (_has("<|START_ACTION|>"), Cohere),
    (_has("[TOOL_CALLS]", "[ARGS]"), lambda thinking: Mistral(thinking, named=True)),
    (_has("[TOOL_CALLS]"), lambda thinking: Mistral(thinking, named=False)),
    (_has("<|tool_call>"), lambda thinking: Gemma4(thinking or CHANNELS)),
    (_has("<seed:tool_call>"), Seed),
    (_has("<function=", "<parameter="), QwenCoder),
    (_has("<arg_key>"), Glm),
    (_has("<function name="), MiniCpm),
    (_has("<|tool_call|>"), Granite),
    (_has(OPENING), Nemotron),
    (_has("<tool_call>"), Hermes),
    (_has("<|header_start|>", START), Llama4),
    (_has("<|header_start|>", "[func_name1("), Llama4),
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
)


def choose(template_source: str | None, tokenizer: Tokenizer | None = None) -> Dialect:
    """The dialect of a model, from its chat template's text and its vocabulary; the generic one if neither tells."""
    source = template_source or ""
    thinking = next((each for each in THOUGHTS if each.open in source or each.close in source), None)
    for fits, make in _BY_TEMPLATE:
        if fits(source):
            return make(thinking)
    if tokenizer is not None:
        control = tokenizer.special.control
        for token, beside, make in _BY_TOKEN:
            if beside in source and any(tokenizer.id_to_piece(each) == token for each in control):
                return make(thinking)
    return Generic(thinking or THINK)
