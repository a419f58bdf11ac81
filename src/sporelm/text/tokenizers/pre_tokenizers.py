"""The pre-tokenizers of BPE vocabularies, by their names in `tokenizer.ggml.pre`.

The names and flags are llama.cpp's (llama-vocab.cpp). The patterns are those of the models' own tokenizer.json files as
far as llama.cpp quotes them, and llama.cpp's otherwise; docs/tokenizers.md lists where the two differ.
"""

from dataclasses import dataclass
from functools import cache

from sporelm.errors import UnsupportedModel
from sporelm.text.tokenizers.pre_tokenizer_split import DigitGroups, PreTokenizerSplitter, SplitRule

# In any case; the long s counts as an s.
_ENDINGS = "'(?:[sSſ]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SPACES = r"\s+(?!\S)|\s+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|" + _SPACES

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|" + _SPACES
_LLAMA3 = "|".join((_ENDINGS, _WORD, r"\p{N}{1,3}", _SIGNS))
_QWEN2 = "|".join((_ENDINGS, _WORD, r"\p{N}", _SIGNS))
_QWEN35 = _ENDINGS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|" + _SPACES
_JAIS2 = _LLAMA3.removesuffix(_SPACES) + (
    r"\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)"
    r"|\s{1,2}(?!\S)|\s"
)
_MINICPM5 = "|".join((_ENDINGS, _WORD, r"\p{N}+", _SIGNS))
_UFAKZEKA = "|".join((_WORD, r"\p{N}", _SIGNS))
_SEED = "|".join((_ENDINGS, _WORD, r"\p{N}", r" ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+", _SPACES))
_BAILING = "|".join((_ENDINGS, _WORD, r"\p{N}", r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]", _SPACES))
# Words that are joined by single spaces are one pre-token.
_EXAONE_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}\p{M}*(?: ?\p{L}\p{M}*)*"
_EXAONE_MOE = "|".join((_ENDINGS, _EXAONE_WORDS, r"\p{N}", r" ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]", _SPACES))


def _split_by_case(exclusion: str, ending: str, digits: str, closing: str) -> str:
    """Return a pattern that ends a word after its lower-case letters, which capitals may precede, or after capitals.

    `exclusion` narrows the letters, `ending` may follow a word, `closing` may follow signs.
    """
    upper, lower = (
        rf"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{exclusion}]",
        rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{exclusion}]",
    )
    before = r"[^\r\n\p{L}\p{N}]?"
    words = f"{before}{upper}*{lower}+{ending}|{before}{upper}+{lower}*{ending}"
    return "|".join((words, digits, rf" ?[^\s\p{{L}}\p{{N}}]+{closing}*|\s*[\r\n]+", _SPACES))


_TEKKEN = _split_by_case("", "", r"\p{N}", r"[\r\n/]")
_GPT4O = _split_by_case("", f"(?:{_ENDINGS})?", r"\p{N}{1,3}", r"[\r\n/]")
_YOUTU = _split_by_case("", f"(?:{_ENDINGS})?", r"\p{N}", r"[\r\n/]")
_KIMI = r"\p{Han}+|" + _split_by_case(r"&&[^\p{Han}]", f"(?:{_ENDINGS})?", r"\p{N}{1,3}", r"[\r\n]")

_DEEPSEEK3_WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"
)
_DEEPSEEK3 = (r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK3_WORDS + r"[\r\n]*|\s*[\r\n]+|" + _SPACES)
_SPARK = (*_DEEPSEEK3[:2], _DEEPSEEK3_WORDS + r"|[\r\n]|" + _SPACES, r"\p{N}")
_DEEPSEEK_CJK = "[一-龥ࠀ-一가-퟿]+"
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, r"\p{N}")
_DEEPSEEK_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώ"
    "ᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ\U00010400-\U0001044f"
    "\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_DEEPSEEK_LETTERS}]+",
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"(?<!\s)\s+$",  # starts at the first of a run, so that each run is scanned once
    _DEEPSEEK_CJK,
    r"\p{N}+",
)
_ASIAN = "一-鿿㐀-䶿豈-\ufaff\u3040-ゟ゠-ヿ･-ﾟ⼀-\u2fdf\u0e40-\u0e7f\u0e80-\u0effក-\u17ffက-႟ꩠ-ꩿꧠ-\ua9ff가-\ud7afᄀ-ᇿ"
_AFMOE = (DigitGroups(r"\p{N}"), f"[{_ASIAN}]+", _DEEPSEEK3_WORDS + r"[\r\n]*|\s*[\r\n]+|" + _SPACES)
_YOUTU_ASIAN = "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+"
_CHAMELEON = (
    "<sentinel:[0-9]+>",
    "IMGIMG[A-I]{1,4}Z",
    r"[\t\n]|    |  ",
    r"\p{N}",
    r"[\p{P}!-/:-@\[-`{-~]",
    _GPT2,
)
_POINTS = r" ?[^(\s|.,!?…。，、।۔،)]+"
_LINES = r"[^\n]+|[\n]+"


@dataclass(frozen=True)
class PreTokenizer:
    """A pre-tokenizer and the flags that go with its name.

    rules                applied one after the other, each to the pieces that the rules before it produced
    ignore_merges        a pre-token that is a token is taken as it is, without merging
    adds_bos             whether BOS is added when the file does not say
    always_bos           BOS is added whatever the file says
    metaspace            tokens are text with ▁ for a space and <0x0A> for a byte, not in the byte-level alphabet
    keeps_newline_runs   a run of line feeds that is a token is taken as it is
    """

    rules: tuple[SplitRule, ...]
    ignore_merges: bool = False
    adds_bos: bool = False
    always_bos: bool = False
    metaspace: bool = False
    keeps_newline_runs: bool = False


_llama3 = PreTokenizer((_LLAMA3,), ignore_merges=True, adds_bos=True)
_gemma4 = PreTokenizer((_LINES,), metaspace=True, adds_bos=True, always_bos=True, keeps_newline_runs=True)

_BY_NAMES: dict[str, PreTokenizer] = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert jina-v1-en jina-v2-code "
    "roberta-bpe mpt olmo jais exaone4 trillion granite-docling": PreTokenizer((_GPT2,)),
    "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2": PreTokenizer((r"\p{N}", _GPT2)),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano": _llama3,
    "dbrx smaug-bpe chatglm-bpe": PreTokenizer((_LLAMA3,)),
    "glm4 glm5": PreTokenizer((_LLAMA3,), ignore_merges=True),
    "jais-2": PreTokenizer((_JAIS2,)),
    "minicpm5": PreTokenizer((r"\p{N}{1,3}", _MINICPM5), ignore_merges=True),
    "qwen2 deepseek-r1-qwen kormo f2llmv2 stablelm2 megrez hunyuan solar-open grok-2": PreTokenizer((_QWEN2,)),
    "qwen35": PreTokenizer((_QWEN35,)),
    "laguna": PreTokenizer((_LINES, _QWEN2)),
    "ufakzeka": PreTokenizer((_UFAKZEKA,)),
    "seed-coder": PreTokenizer((_SEED,)),
    "bailingmoe bailingmoe2 llada-moe": PreTokenizer((_BAILING,)),
    "exaone-moe": PreTokenizer((_EXAONE_MOE,)),
    "tekken": PreTokenizer((_TEKKEN,), ignore_merges=True, adds_bos=True),
    "gpt-4o llama4 kanana2 talkie minimax-m2": PreTokenizer((_GPT4O,)),
    "granite-embed-multi-97m": PreTokenizer((_GPT4O,), ignore_merges=True),
    "tiny_aya cohere2moe": PreTokenizer((DigitGroups(whole_word=True), _GPT4O)),
    "youtu": PreTokenizer((_YOUTU_ASIAN, _YOUTU), ignore_merges=True),
    "kimi-k2": PreTokenizer((_KIMI,)),
    "deepseek-llm": PreTokenizer(_DEEPSEEK_LLM),
    "deepseek-coder": PreTokenizer(_DEEPSEEK_CODER),
    "deepseek-v3 hunyuan-dense joyai-llm hy_v4": PreTokenizer(_DEEPSEEK3),
    "spark2_5": PreTokenizer(_SPARK),
    "afmoe": PreTokenizer(_AFMOE),
    "chameleon": PreTokenizer(_CHAMELEON, adds_bos=True),
    "poro-chat bloom gpt3-finnish": PreTokenizer((_POINTS,)),
    "viking": PreTokenizer((_POINTS, r"\p{N}")),
    "superbpe": PreTokenizer((r"\p{N}+", DigitGroups(isolated=False))),
    "gemma4 granite-embed-multi-311m": _gemma4,
    "sarvam-moe": PreTokenizer((_LINES,), metaspace=True),
}
PRE_TOKENIZERS = {name: entry for names, entry in _BY_NAMES.items() for name in names.split()}


@cache
def get_splitter(rules: tuple[SplitRule, ...]) -> PreTokenizerSplitter:
    """Return the splitter of `rules`, which is built once."""
    return PreTokenizerSplitter(rules)


def find_pre_tokenizer(name: str, label: str) -> PreTokenizer:
    """Return the entry for `name`, the value of tokenizer.ggml.pre. Raises UnsupportedModel, which lists the names."""
    if name not in PRE_TOKENIZERS:
        from difflib import get_close_matches

        near = get_close_matches(name[:60], PRE_TOKENIZERS, n=3)
        hint = f"; nearest: {', '.join(near)}" if near else ""
        first = ", ".join(names.split()[0] for names in _BY_NAMES)
        num_aliases = len(PRE_TOKENIZERS) - len(_BY_NAMES)
        raise UnsupportedModel(
            f"{label}: tokenizer.ggml.pre is not supported (got {name[:60]!r}{hint}; allowed {first}, and "
            f"{num_aliases} aliases of these)"
        )
    return PRE_TOKENIZERS[name]
