"""The special tokens of a GGUF vocabulary: token types corrected by the tokens' texts, and named tokens.

Token types are often wrong in published files. llama.cpp (llama-vocab.cpp) corrects them by the tokens' texts, and by
the model's name it knows which tokens strip the spaces around them. Both rules are followed here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sporelm.text.tokenizers.gguf_vocabulary import GgufVocabulary
from sporelm.text.tokenizers.special_token_splitter import AddedToken, SpecialTokenSplitter
from sporelm.text.tokenizers.special_tokens import SpecialTokens, find_stop_ids
from sporelm.text.tokenizers.token_types import CONTROL, UNKNOWN, USER_DEFINED

# Ends of turns and FIM tokens: control tokens whatever their type.
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
_USER_DEFINED_TEXTS = frozenset(("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"))
_PHI3_WITHOUT_RSTRIP = frozenset(("<unk>", "<s>", "<|endoftext|>"))


@dataclass(frozen=True)
class SpecialTokenRoles:
    """The tokens of a vocabulary that are matched in text as a whole.

    control         ids matched only with parse_special: control and unknown tokens
    user_defined    ids matched in every text
    added_tokens    id -> how each of them is matched
    splitter        matches both kinds; `plain_splitter` user-defined tokens only
    """

    control: frozenset[int]
    user_defined: frozenset[int]
    added_tokens: Mapping[int, AddedToken]
    splitter: SpecialTokenSplitter
    plain_splitter: SpecialTokenSplitter

    @property
    def special(self) -> frozenset[int]:
        """All ids that are matched in text as a whole."""
        return self.control | self.user_defined


def classify_special_tokens(vocabulary: GgufVocabulary) -> SpecialTokenRoles:
    """Return the roles of a vocabulary's special tokens."""
    control = {i for i in vocabulary.special if vocabulary.types[i] in (UNKNOWN, CONTROL)}
    user_defined = {i for i in vocabulary.special if vocabulary.types[i] == USER_DEFINED}
    control_by_text = {vocabulary.ids[text] for text in _CONTROL_TEXTS if text in vocabulary.ids}
    user_defined_by_text = {vocabulary.ids[text] for text in _USER_DEFINED_TEXTS if text in vocabulary.ids}
    ids = vocabulary.ids
    if "</s>" in ids and ("<|tool_response>" in ids or "<|plamo:eos|>" in ids):  # the HTML tag in these vocabularies
        control_by_text.discard(ids["</s>"])
        control.discard(ids["</s>"])
    control = (control | control_by_text) - user_defined_by_text
    user_defined = (user_defined | user_defined_by_text) - control
    find_stripping = _make_stripping_rule(vocabulary)
    added_tokens = {
        i: AddedToken(vocabulary.tokens[i], i, *find_stripping(vocabulary.tokens[i])) for i in control | user_defined
    }
    return SpecialTokenRoles(
        control=frozenset(control),
        user_defined=frozenset(user_defined),
        added_tokens=added_tokens,
        splitter=SpecialTokenSplitter(added_tokens[i] for i in sorted(added_tokens)),
        plain_splitter=SpecialTokenSplitter(added_tokens[i] for i in sorted(user_defined)),
    )


def _make_stripping_rule(vocabulary: GgufVocabulary) -> Callable[[str], tuple[bool, bool]]:
    """Return a function: text of a special token -> (lstrip, rstrip)."""
    values = (vocabulary.metadata.get(key) for key in ("general.name", "general.architecture", "tokenizer.ggml.pre"))
    # The metadata may hold anything, and much of it: it is searched once, not for every token.
    name, architecture, pre_tokenizer = (value if isinstance(value, str) else "" for value in values)
    name = name.lower()
    if any(prefix in pre_tokenizer for prefix in ("jina-v2-de", "jina-v2-es", "jina-v2-code")) or any(
        prefix in architecture for prefix in ("nomic-bert-moe", "jina-bert-v3")
    ):
        return lambda text: (text == "<mask>", False)
    if "phi-3" in name or "phi3" in name:
        return lambda text: (False, text not in _PHI3_WITHOUT_RSTRIP)
    if "modern-bert" in name:
        return lambda text: (text == "[MASK]", False)
    return lambda text: (False, False)


def find_prefix_and_suffix(
    vocabulary: GgufVocabulary, named_ids: Mapping[str, int], *, adds_bos: bool, adds_eos: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids put before and after a text; `adds_bos` and `adds_eos` are the defaults of the file's flags."""

    def find(name: str, default: bool) -> tuple[int, ...]:
        return (named_ids[name],) if vocabulary.read_flag(f"add_{name}", default) and name in named_ids else ()

    return find("bos_token", adds_bos), find("eos_token", adds_eos)


def build_special_tokens(
    vocabulary: GgufVocabulary,
    roles: SpecialTokenRoles,
    defaults: dict[str, int],
    *,
    prefix: tuple[int, ...],
    suffix: tuple[int, ...],
    has_pair_token_types: bool = False,
) -> SpecialTokens:
    """Return the special tokens of a vocabulary; `defaults` are ids by name for those absent in the file."""
    named_ids = read_named_ids(vocabulary, defaults)
    turn_ends = [vocabulary.read_token_id(f"tokenizer.ggml.{name}_token_id") for name in ("eot", "eom")]
    eos = named_ids.get("eos_token")
    return SpecialTokens(
        bos_id=named_ids.get("bos_token"),
        eos_id=eos,
        stop_ids=find_stop_ids([eos, *turn_ends], {vocabulary.tokens[token]: token for token in roles.control}),
        control=roles.control,
        prefix=prefix,
        suffix=suffix,
        separator=suffix if has_pair_token_types else _find_separator(vocabulary, named_ids, suffix),
        has_pair_token_types=has_pair_token_types,
        names={name: vocabulary.tokens[token] for name, token in named_ids.items()},
        fim=read_fim_ids(vocabulary),
    )


# Architectures whose files may have RoBERTa's tokenizer.
ROBERTA_ARCHITECTURES = ("bert", "jina-bert-v3", "megatron-bert", "nomic-bert-moe", "gte")
WITHOUT_TOKEN_TYPES = ("mpnet",)  # architectures with WordPiece that separate pairs as RoBERTa does


def _find_separator(
    vocabulary: GgufVocabulary, named_ids: Mapping[str, int], suffix: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the ids between the texts of a pair: RoBERTa, in files of "bert", and MPNet use EOS and a separator."""
    architectures = (*ROBERTA_ARCHITECTURES, *WITHOUT_TOKEN_TYPES)
    is_roberta = vocabulary.metadata.get("general.architecture") in architectures
    if is_roberta and "sep_token" in named_ids and vocabulary.read_flag("add_sep_token", True):
        return (*suffix, named_ids["sep_token"])
    return suffix


_FIM_KEYS = {"prefix": ("fim_pre", "prefix"), "suffix": ("fim_suf", "suffix"), "middle": ("fim_mid", "middle")}


def read_fim_ids(vocabulary: GgufVocabulary) -> dict[str, int]:
    """Return the FIM tokens of the file, under the current keys or the older ones."""
    ids = {
        name: vocabulary.read_token_id(*[f"tokenizer.ggml.{key}_token_id" for key in keys])
        for name, keys in _FIM_KEYS.items()
    }
    return {name: token for name, token in ids.items() if token is not None}


_NAME_KEYS = {
    "bos_token": ("bos",),
    "eos_token": ("eos",),
    "unk_token": ("unknown",),
    "sep_token": ("separator", "seperator"),
    "pad_token": ("padding",),
    "cls_token": ("cls",),
    "mask_token": ("mask",),
}


def read_named_ids(vocabulary: GgufVocabulary, defaults: dict[str, int]) -> dict[str, int]:
    """Return name -> id of the named tokens: the file's, or else those of `defaults`."""
    named_ids = {}
    for name, keys in _NAME_KEYS.items():
        token = vocabulary.read_token_id(*[f"tokenizer.ggml.{key}_token_id" for key in keys])
        if token is None and name in defaults and defaults[name] < len(vocabulary.tokens):
            token = defaults[name]
        if token is not None:
            named_ids[name] = token
    return named_ids


def read_chat_templates(vocabulary: GgufVocabulary) -> dict[str, str]:
    """Return name -> source of the chat templates in the file."""
    key = "tokenizer.chat_template"
    keys = {"default": key, "tool_use": f"{key}.tool_use", "rerank": f"{key}.rerank"}
    sources = {name: vocabulary.read(name_key, str) for name, name_key in keys.items()}
    return {name: source for name, source in sources.items() if source}
