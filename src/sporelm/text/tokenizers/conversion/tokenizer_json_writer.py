"""Builds the tokenizer.json of a GGUF file's vocabulary, by its kind."""

import base64
from typing import Any

from sporelm.errors import UnsupportedModel
from sporelm.text.tokenizers.byte_level import SPACE
from sporelm.text.tokenizers.conversion.converted_vocabulary import make_padding_text
from sporelm.text.tokenizers.conversion.merges_from_scores import compute_merges
from sporelm.text.tokenizers.gguf_special_tokens import SpecialTokenRoles
from sporelm.text.tokenizers.gguf_unigram import read_charsmap_bytes
from sporelm.text.tokenizers.gguf_vocabulary import GgufVocabulary
from sporelm.text.tokenizers.pre_tokenizer_split import SplitRule
from sporelm.text.tokenizers.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer, find_pre_tokenizer
from sporelm.text.tokenizers.special_tokens import SpecialTokens
from sporelm.text.tokenizers.token_types import BYTE, CONTROL, NORMAL, UNUSED
from sporelm.text.tokenizers.unigram import check_total_length

Spec = dict[str, Any]

_GPT2 = PRE_TOKENIZERS["gpt-2"].rules[0]
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
_REPLACE_SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
_RESTORE_SPACES = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}


def build_tokenizer_json(
    vocabulary: GgufVocabulary, roles: SpecialTokenRoles, special: SpecialTokens, leading_spaces: int
) -> Spec:
    """Return the whole tokenizer.json. `leading_spaces` are stripped from the beginning of a decoded text."""
    model = vocabulary.metadata.get("tokenizer.ggml.model")
    builders = {
        "gpt2": _build_bpe,
        "gemma4": _build_bpe,
        "llama": _build_sentencepiece_bpe,
        "t5": _build_unigram,
        "bert": _build_wordpiece,
    }
    if model not in builders:
        raise UnsupportedModel(
            f"{vocabulary.label}: tokenizer model cannot be converted to a tokenizer.json (got {str(model)[:60]!r}; "
            f"allowed {', '.join(builders)})"
        )
    spec: Spec = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _make_added_tokens(roles),
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": _make_post_processor(vocabulary, special),
        "decoder": _make_sentencepiece_decoder(leading_spaces, byte_fallback=model != "t5"),
    }
    return spec | builders[model](vocabulary, roles)


def _make_added_tokens(roles: SpecialTokenRoles) -> list[Spec]:
    return [
        {
            "id": token,
            "content": entry.text,
            "single_word": False,
            "lstrip": entry.lstrip,
            "rstrip": entry.rstrip,
            "normalized": False,
            "special": token in roles.control,
        }
        for token, entry in sorted(roles.added_tokens.items())
        if entry.text
    ]


def _make_post_processor(vocabulary: GgufVocabulary, special: SpecialTokens) -> Spec | None:
    """Return the post-processor, which puts ids before and after a text; None if there are none."""
    # An encoder's tokenizer, which reads two texts together.
    is_paired = special.has_pair_token_types or special.separator != special.suffix
    ids = (*special.prefix, *special.suffix, *(special.separator if is_paired else ()))
    texts = {token: vocabulary.tokens[token] for token in ids}
    if not texts:
        return None

    def make_tokens(ids: tuple[int, ...], type_id: int) -> list[Spec]:
        return [{"SpecialToken": {"id": texts[token], "type_id": type_id}} for token in ids]

    start: list[Spec] = [*make_tokens(special.prefix, 0), {"Sequence": {"id": "A", "type_id": 0}}]
    single = [*start, *make_tokens(special.suffix, 0)]
    second = 0 if is_paired and not special.has_pair_token_types else 1
    first = [*start, *make_tokens(special.separator, 0)] if is_paired else [*single, *make_tokens(special.prefix, 1)]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*first, {"Sequence": {"id": "B", "type_id": second}}, *make_tokens(special.suffix, second)],
        "special_tokens": {text: {"id": text, "ids": [token], "tokens": [text]} for token, text in texts.items()},
    }


def _make_sentencepiece_decoder(leading_spaces: int, *, byte_fallback: bool) -> Spec:
    steps: list[Spec] = [_RESTORE_SPACES, *([{"type": "ByteFallback"}] if byte_fallback else []), {"type": "Fuse"}]
    if leading_spaces:
        steps.append({"type": "Strip", "content": " ", "start": leading_spaces, "stop": 0})
    return {"type": "Sequence", "decoders": steps}


def _find_ids(vocabulary: GgufVocabulary) -> dict[str, int]:
    """Return text -> id of all tokens except padding."""
    padding = {
        i for i, kind in enumerate(vocabulary.types) if kind == UNUSED and vocabulary.tokens[i] == make_padding_text(i)
    }
    return {text: token for token, text in enumerate(vocabulary.tokens) if token not in padding}


def _make_bpe_model(vocabulary: GgufVocabulary, merges: list[tuple[str, str]], **options: Any) -> Spec:
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
    }
    return {**model, **options, "vocab": _find_ids(vocabulary), "merges": [list(pair) for pair in merges]}


def _build_bpe(vocabulary: GgufVocabulary, roles: SpecialTokenRoles) -> Spec:
    metadata = vocabulary.metadata
    is_gemma = metadata.get("tokenizer.ggml.model") == "gemma4"
    name = "gemma4" if is_gemma else metadata.get("tokenizer.ggml.pre") or "default"
    pre_tokenizer = find_pre_tokenizer(str(name), vocabulary.label)
    merges = vocabulary.read_merges()
    if pre_tokenizer.metaspace:
        return {
            "normalizer": _REPLACE_SPACES,
            "pre_tokenizer": _make_sequence([_make_split(rule) for rule in pre_tokenizer.rules]),
            "decoder": _make_sentencepiece_decoder(0, byte_fallback=True),
            "model": _make_bpe_model(vocabulary, merges, byte_fallback=True),
        }
    return {
        "pre_tokenizer": make_pre_tokenizer(pre_tokenizer),
        "decoder": _BYTE_LEVEL,
        "model": _make_bpe_model(vocabulary, merges, ignore_merges=pre_tokenizer.ignore_merges),
    }


def make_pre_tokenizer(pre_tokenizer: PreTokenizer) -> Spec:
    """Return the pre_tokenizer with these rules; it uses the library's own GPT-2 pattern if that comes last."""
    rules = pre_tokenizer.rules
    if rules[-1] == _GPT2:
        return _make_sequence([*map(_make_split, rules[:-1]), _BYTE_LEVEL | {"use_regex": True}])
    return _make_sequence([*map(_make_split, rules), _BYTE_LEVEL])


def _make_split(rule: SplitRule) -> Spec:
    if rule == r"\p{N}":
        return {"type": "Digits", "individual_digits": True}
    return {"type": "Split", "pattern": {"Regex": _make_pattern(rule)}, "behavior": "Isolated", "invert": False}


def _make_pattern(rule: SplitRule) -> str:
    if isinstance(rule, str):
        return rule
    digit = rule.digits
    if not rule.isolated:
        return rf"(?<={digit})(?=(?:{digit}{{3}})+(?!{digit}))"
    end = r"\b" if rule.whole_word else f"(?!{digit})"
    return rf"{digit}{{1,3}}(?=(?:{digit}{{3}})*{end})"


def _make_sequence(steps: list[Spec]) -> Spec:
    return steps[0] if len(steps) == 1 else {"type": "Sequence", "pretokenizers": steps}


def _build_sentencepiece_bpe(vocabulary: GgufVocabulary, roles: SpecialTokenRoles) -> Spec:
    scores = vocabulary.read_scores()
    types = vocabulary.types
    ids = {text: i for i, text in enumerate(vocabulary.tokens) if text and i not in roles.control and types[i] != BYTE}
    check_total_length(ids, vocabulary.label)  # all splits of each of them in two are tried
    steps = [_REPLACE_SPACES]
    if vocabulary.read_flag("add_space_prefix", True):
        steps.insert(0, {"type": "Prepend", "prepend": SPACE})
    unknown = vocabulary.read_token_id("tokenizer.ggml.unknown_token_id")
    byte_fallback = f"<0x{0:02X}>" in vocabulary.ids
    model = _make_bpe_model(
        vocabulary,
        compute_merges(ids, scores),
        unk_token=vocabulary.tokens[0 if unknown is None else unknown],
        fuse_unk=True,
        byte_fallback=byte_fallback,
    )
    return {"normalizer": {"type": "Sequence", "normalizers": steps}, "model": model}


def _build_unigram(vocabulary: GgufVocabulary, roles: SpecialTokenRoles) -> Spec:
    scores = vocabulary.read_scores()
    types = vocabulary.types
    tokens = list(vocabulary.tokens)
    while tokens and types[len(tokens) - 1] == UNUSED and tokens[-1] == make_padding_text(len(tokens) - 1):
        tokens.pop()
    # The library derives the score of unknown characters from the lowest score: other tokens must not lower it.
    pieces = [[text, scores[i] if types[i] in (NORMAL, UNUSED) else 0.0] for i, text in enumerate(tokens)]
    steps: list[Spec] = []
    if charsmap := read_charsmap_bytes(vocabulary):
        steps.append({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()})
    if merges_spaces := vocabulary.read_flag("remove_extra_whitespaces", False):
        steps.append({"type": "Replace", "pattern": {"Regex": r"\A +| +\z"}, "content": ""})
        steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    if merges_spaces or vocabulary.read_flag("add_space_prefix", False):
        steps.append({"type": "Prepend", "prepend": SPACE})
    steps.append(_REPLACE_SPACES)
    unknown = vocabulary.read_token_id("tokenizer.ggml.unknown_token_id")
    model = {"type": "Unigram", "unk_id": 2 if unknown is None else unknown, "vocab": pieces, "byte_fallback": False}
    return {"normalizer": {"type": "Sequence", "normalizers": steps}, "model": model}


def _build_wordpiece(vocabulary: GgufVocabulary, roles: SpecialTokenRoles) -> Spec:
    lowercase = vocabulary.read_flag("normalizer.lowercase", True)
    vocab: dict[str, int] = {}
    for token, text in enumerate(vocabulary.tokens):
        if vocabulary.types[token] != CONTROL and token not in roles.control:
            text = text[1:] if text.startswith(SPACE) else f"##{text}"
        vocab[text] = token
    if len(vocab) != len(vocabulary.tokens):
        raise UnsupportedModel(f"{vocabulary.label}: two of its tokens would be the same text in a tokenizer.json")
    unknown = vocabulary.read_token_id("tokenizer.ggml.unknown_token_id")
    return {
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": vocabulary.read_flag("normalizer.strip_accents", lowercase),
            "lowercase": lowercase,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": vocabulary.tokens[100 if unknown is None else unknown],
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocab,
        },
    }
