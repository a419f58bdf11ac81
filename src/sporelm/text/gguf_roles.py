"""Which tokens of a GGUF vocabulary are special, beyond what its token types say.

Types are often wrong in files that people made: llama.cpp (llama-vocab.cpp) corrects them by the tokens' texts, and
knows by the model's name which tokens take the spaces around them. Both rules are followed here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sporelm.text.fragments import Fragments, SpecialText
from sporelm.text.gguf_vocabulary import Vocabulary
from sporelm.text.special_tokens import SpecialTokens, stop_ids
from sporelm.text.token_types import CONTROL, UNKNOWN, USER_DEFINED

# Ends of turns and marks of "fill in the middle", control tokens whatever their type says.
_CONTROL_TEXTS = frozenset(
    [
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|flush|>",
        "<|calls|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "</s>",
        "<|eom_id|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<|end_of_text|>",
        "<end_of_utterance>",
        "<eos>",
        "<turn|>",
        "<|tool_response>",
        "<｜end▁of▁sentence｜>",
        "[e~[",
        "<|fim_prefix|>",
        "<fim-prefix>",
        "<fim_prefix>",
        "<｜fim▁begin｜>",
        "<PRE>",
        "▁<PRE>",
        "<|code_prefix|>",
        "<|prefix|>",
        "<|fim_suffix|>",
        "<fim-suffix>",
        "<fim_suffix>",
        "<｜fim▁hole｜>",
        "<SUF>",
        "▁<SUF>",
        "<|code_suffix|>",
        "<|suffix|>",
        "<|fim_middle|>",
        "<fim-middle>",
        "<fim_middle>",
        "<｜fim▁end｜>",
        "<MID>",
        "▁<MID>",
        "<|code_middle|>",
        "<|middle|>",
        "<|fim_pad|>",
        "<fim-pad>",
        "<fim_pad>",
        "<PAD>",
        "[PAD]",
        "<|fim_repo|>",
        "<|repo_name|>",
        "<fim-repo>",
        "<REPO>",
        "<reponame>",
        "<|file_sep|>",
    ]
)
_SHOWN_TEXTS = frozenset(("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"))
_PHI3_KEEPS_SPACES = frozenset(("<unk>", "<s>", "<|endoftext|>"))


@dataclass(frozen=True)
class Roles:
    """What the tokens of a vocabulary are for.

    control    ids recognised in text if asked for, as control and unknown tokens are
    defined    ids recognised in every text
    texts      id -> how each of them is recognised
    parsing    finds both kinds; `plain` the second only
    """

    control: frozenset[int]
    defined: frozenset[int]
    texts: Mapping[int, SpecialText]
    parsing: Fragments
    plain: Fragments

    @property
    def special(self) -> frozenset[int]:
        """All that are recognised in text as a whole."""
        return self.control | self.defined


def roles_of(vocabulary: Vocabulary) -> Roles:
    """The roles of a vocabulary's tokens."""
    control = {i for i in vocabulary.special if vocabulary.types[i] in (UNKNOWN, CONTROL)}
    defined = {i for i in vocabulary.special if vocabulary.types[i] == USER_DEFINED}
    named = {vocabulary.ids[text] for text in _CONTROL_TEXTS if text in vocabulary.ids}
    shown = {vocabulary.ids[text] for text in _SHOWN_TEXTS if text in vocabulary.ids}
    ids = vocabulary.ids
    if "</s>" in ids and ("<|tool_response>" in ids or "<|plamo:eos|>" in ids):  # as in HTML there
        named.discard(ids["</s>"])
        control.discard(ids["</s>"])
    control = (control | named) - shown
    defined = (defined | shown) - control
    takes = _spaces_taken(vocabulary)
    texts = {i: SpecialText(vocabulary.tokens[i], i, *takes(vocabulary.tokens[i])) for i in control | defined}
    return Roles(
        control=frozenset(control),
        defined=frozenset(defined),
        texts=texts,
        parsing=Fragments(texts[i] for i in sorted(texts)),
        plain=Fragments(texts[i] for i in sorted(defined)),
    )


def _spaces_taken(vocabulary: Vocabulary) -> Callable[[str], tuple[bool, bool]]:
    """What tells, of a special token's text, whether it takes the spaces before it, and those after it."""
    found = (vocabulary.metadata.get(key) for key in ("general.name", "general.architecture", "tokenizer.ggml.pre"))
    # The metadata may hold anything, and much of it: it is looked through once, not for every token.
    name, architecture, cutter = (value if isinstance(value, str) else "" for value in found)
    name = name.lower()
    if any(known in cutter for known in ("jina-v2-de", "jina-v2-es", "jina-v2-code")) or any(
        known in architecture for known in ("nomic-bert-moe", "jina-bert-v3")
    ):
        return lambda text: (text == "<mask>", False)
    if "phi-3" in name or "phi3" in name:
        return lambda text: (False, text not in _PHI3_KEEPS_SPACES)
    if "modern-bert" in name:
        return lambda text: (text == "[MASK]", False)
    return lambda text: (False, False)


def framing(
    vocabulary: Vocabulary, named: Mapping[str, int], *, bos: bool, eos: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids put before a text and after it; `bos` and `eos` say whether those are where the file does not."""

    def ids(name: str, default: bool) -> tuple[int, ...]:
        return (named[name],) if flag(vocabulary, f"add_{name}", default) and name in named else ()

    return ids("bos_token", bos), ids("eos_token", eos)


def special_tokens_of(
    vocabulary: Vocabulary,
    roles: Roles,
    defaults: dict[str, int],
    *,
    prefix: tuple[int, ...],
    suffix: tuple[int, ...],
    typed: bool = False,
) -> SpecialTokens:
    """What is put around texts and what ends them.

    defaults   ids by name for what the file leaves out
    typed      a second text has a token type of its own
    """
    named = named_ids(vocabulary, defaults)
    turn_ends = [vocabulary.token_id(f"tokenizer.ggml.{kind}_token_id") for kind in ("eot", "eom")]
    eos = named.get("eos_token")
    return SpecialTokens(
        bos_id=named.get("bos_token"),
        eos_id=eos,
        stop_ids=stop_ids([eos, *turn_ends], {vocabulary.tokens[token]: token for token in roles.control}),
        control=roles.control,
        prefix=prefix,
        suffix=suffix,
        between=suffix if typed else _between(vocabulary, named, suffix),
        typed=typed,
        names={name: vocabulary.tokens[token] for name, token in named.items()},
        gap=gap_of(vocabulary),
    )


OF_ROBERTA = ("bert", "jina-bert-v3", "megatron-bert", "nomic-bert-moe", "gte")  # of which some have its tokenizer
UNTYPED = ("mpnet",)  # architectures with WordPiece whose pairs are RoBERTa's


def _between(vocabulary: Vocabulary, named: Mapping[str, int], suffix: tuple[int, ...]) -> tuple[int, ...]:
    """What stands between two texts: RoBERTa, whose files are of "bert", and MPNet have an end and a separator."""
    is_roberta = vocabulary.metadata.get("general.architecture") in (*OF_ROBERTA, *UNTYPED)
    if is_roberta and "sep_token" in named and flag(vocabulary, "add_sep_token", True):
        return (*suffix, named["sep_token"])
    return suffix


_GAP_KEYS = {"prefix": ("fim_pre", "prefix"), "suffix": ("fim_suf", "suffix"), "middle": ("fim_mid", "middle")}


def gap_of(vocabulary: Vocabulary) -> dict[str, int]:
    """The marks around a gap that the file names, by the keys of today or the older ones."""
    found = {
        name: vocabulary.token_id(*[f"tokenizer.ggml.{kind}_token_id" for kind in kinds])
        for name, kinds in _GAP_KEYS.items()
    }
    return {name: token for name, token in found.items() if token is not None}


_KEYS = {
    "bos_token": ("bos",),
    "eos_token": ("eos",),
    "unk_token": ("unknown",),
    "sep_token": ("separator", "seperator"),
    "pad_token": ("padding",),
    "cls_token": ("cls",),
    "mask_token": ("mask",),
}


def named_ids(vocabulary: Vocabulary, defaults: dict[str, int]) -> dict[str, int]:
    """Name -> id of the tokens with a name, as the file says, or else as `defaults` do."""
    found = {}
    for name, kinds in _KEYS.items():
        token = vocabulary.token_id(*[f"tokenizer.ggml.{kind}_token_id" for kind in kinds])
        if token is None and name in defaults and defaults[name] < len(vocabulary.tokens):
            token = defaults[name]
        if token is not None:
            found[name] = token
    return found


def flag(vocabulary: Vocabulary, key: str, default: bool) -> bool:
    """The yes or no of `tokenizer.ggml.` + `key`."""
    value: bool | None = vocabulary.value(f"tokenizer.ggml.{key}", bool)
    return default if value is None else value


def chat_templates(vocabulary: Vocabulary) -> dict[str, str]:
    """Name -> source of the chat templates in the file."""
    key = "tokenizer.chat_template"
    names = {"default": key, "tool_use": f"{key}.tool_use", "rerank": f"{key}.rerank"}
    found = {name: vocabulary.value(each, str) for name, each in names.items()}
    return {name: source for name, source in found.items() if source}
