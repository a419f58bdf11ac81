"""The tokenizer.json of each kind of vocabulary that GGUF files hold, for the `tokenizers` library."""

import base64
from typing import Any

from sporelm.errors import UnsupportedModel
from sporelm.text.cutter import Rule
from sporelm.text.exchange.gguf_kinds import absent
from sporelm.text.exchange.score_merges import merges_of_scores
from sporelm.text.gguf_roles import Roles, flag
from sporelm.text.gguf_spm import scores_of
from sporelm.text.gguf_unigram import charsmap_of
from sporelm.text.gguf_vocabulary import Vocabulary
from sporelm.text.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer, pre_tokenizer
from sporelm.text.special_tokens import SpecialTokens
from sporelm.text.token_bytes import SPACE
from sporelm.text.token_types import BYTE, CONTROL, NORMAL, UNUSED
from sporelm.text.unigram import check_total_length

Part = dict[str, Any]

_GPT2 = PRE_TOKENIZERS["gpt-2"].rules[0]
_PLAIN_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
_SPACES_TO_PIECES = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
_PIECES_TO_SPACES = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}


def spec_of(vocabulary: Vocabulary, roles: Roles, special: SpecialTokens, leading_spaces: int) -> Part:
    """The whole tokenizer.json. `leading_spaces` are taken from the beginning of a decoded text."""
    kind = vocabulary.metadata.get("tokenizer.ggml.model")
    make = {"gpt2": _byte_level, "gemma4": _byte_level, "llama": _scored, "t5": _unigram, "bert": _wordpiece}
    if kind not in make:
        raise UnsupportedModel(f"{vocabulary.label}: tokenizer model {str(kind)[:60]!r} cannot become a tokenizer.json")
    spec: Part = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added(roles),
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": _framing(vocabulary, special),
        "decoder": _decoder_of_pieces(leading_spaces, bytes_too=kind != "t5"),
    }
    return spec | make[kind](vocabulary, roles)


def _added(roles: Roles) -> list[Part]:
    return [
        {
            "id": token,
            "content": entry.text,
            "single_word": False,
            "lstrip": entry.takes_left,
            "rstrip": entry.takes_right,
            "normalized": False,
            "special": token in roles.control,
        }
        for token, entry in sorted(roles.texts.items())
        if entry.text
    ]


def _framing(vocabulary: Vocabulary, special: SpecialTokens) -> Part | None:
    """What puts ids before and after a text."""
    paired = special.typed or special.between != special.suffix  # an encoder's, which reads two texts together
    known = (*special.prefix, *special.suffix, *(special.between if paired else ()))
    around = {token: vocabulary.tokens[token] for token in known}
    if not around:
        return None

    def tokens(ids: tuple[int, ...], sequence: int) -> list[Part]:
        return [{"SpecialToken": {"id": around[token], "type_id": sequence}} for token in ids]

    start: list[Part] = [*tokens(special.prefix, 0), {"Sequence": {"id": "A", "type_id": 0}}]
    single = [*start, *tokens(special.suffix, 0)]
    second = 0 if paired and not special.typed else 1
    first = [*start, *tokens(special.between, 0)] if paired else [*single, *tokens(special.prefix, 1)]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*first, {"Sequence": {"id": "B", "type_id": second}}, *tokens(special.suffix, second)],
        "special_tokens": {text: {"id": text, "ids": [token], "tokens": [text]} for token, text in around.items()},
    }


def _decoder_of_pieces(leading_spaces: int, *, bytes_too: bool) -> Part:
    steps: list[Part] = [_PIECES_TO_SPACES, *([{"type": "ByteFallback"}] if bytes_too else []), {"type": "Fuse"}]
    if leading_spaces:
        steps.append({"type": "Strip", "content": " ", "start": leading_spaces, "stop": 0})
    return {"type": "Sequence", "decoders": steps}


def ids_of(vocabulary: Vocabulary) -> dict[str, int]:
    """Text -> id of all tokens but those that only stand for an id that no token has."""
    unused = (i for i, kind in enumerate(vocabulary.types) if kind == UNUSED and vocabulary.tokens[i] == absent(i))
    left_out = set(unused)
    return {text: token for token, text in enumerate(vocabulary.tokens) if token not in left_out}


def _bpe(vocabulary: Vocabulary, merges: list[tuple[str, str]], **more: Any) -> Part:
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
    return {**model, **more, "vocab": ids_of(vocabulary), "merges": [list(pair) for pair in merges]}


def _byte_level(vocabulary: Vocabulary, roles: Roles) -> Part:
    metadata = vocabulary.metadata
    gemma = metadata.get("tokenizer.ggml.model") == "gemma4"
    name = "gemma4" if gemma else metadata.get("tokenizer.ggml.pre") or "default"
    pre = pre_tokenizer(str(name), vocabulary.label)
    merges = vocabulary.merges()
    if pre.raw:
        return {
            "normalizer": _SPACES_TO_PIECES,
            "pre_tokenizer": _sequence([_split(rule) for rule in pre.rules]),
            "decoder": _decoder_of_pieces(0, bytes_too=True),
            "model": _bpe(vocabulary, merges, byte_fallback=True),
        }
    return {
        "pre_tokenizer": cutting(pre),
        "decoder": _PLAIN_BYTES,
        "model": _bpe(vocabulary, merges, ignore_merges=pre.ignore_merges),
    }


def cutting(pre: PreTokenizer) -> Part:
    """The pre_tokenizer that cuts text so; the library's own GPT-2 pattern where that comes last."""
    if pre.rules[-1] == _GPT2:
        return _sequence([*(_split(rule) for rule in pre.rules[:-1]), _PLAIN_BYTES | {"use_regex": True}])
    return _sequence([*(_split(rule) for rule in pre.rules), _PLAIN_BYTES])


def _split(rule: Rule) -> Part:
    if rule == r"\p{N}":
        return {"type": "Digits", "individual_digits": True}
    return {"type": "Split", "pattern": {"Regex": _pattern(rule)}, "behavior": "Isolated", "invert": False}


def _pattern(rule: Rule) -> str:
    if isinstance(rule, str):
        return rule
    digit = rule.digits
    if not rule.isolated:
        return rf"(?<={digit})(?=(?:{digit}{{3}})+(?!{digit}))"
    end = r"\b" if rule.whole_word else f"(?!{digit})"
    return rf"{digit}{{1,3}}(?=(?:{digit}{{3}})*{end})"


def _sequence(steps: list[Part]) -> Part:
    return steps[0] if len(steps) == 1 else {"type": "Sequence", "pretokenizers": steps}


def _scored(vocabulary: Vocabulary, roles: Roles) -> Part:
    """SentencePiece's BPE, its scores as an order of merges."""
    scores, types = scores_of(vocabulary), vocabulary.types
    usable = {
        text: i for i, text in enumerate(vocabulary.tokens) if text and i not in roles.control and types[i] != BYTE
    }
    check_total_length(usable, vocabulary.label)  # every way to cut each of them in two is looked at
    steps = [_SPACES_TO_PIECES]
    if flag(vocabulary, "add_space_prefix", True):
        steps.insert(0, {"type": "Prepend", "prepend": SPACE})
    unknown = vocabulary.token_id("tokenizer.ggml.unknown_token_id")
    fallback = f"<0x{0:02X}>" in vocabulary.ids
    model = _bpe(
        vocabulary,
        merges_of_scores(usable, scores),
        unk_token=vocabulary.tokens[0 if unknown is None else unknown],
        fuse_unk=True,
        byte_fallback=fallback,
    )
    return {"normalizer": {"type": "Sequence", "normalizers": steps}, "model": model}


def _unigram(vocabulary: Vocabulary, roles: Roles) -> Part:
    scores, types, tokens = scores_of(vocabulary), vocabulary.types, list(vocabulary.tokens)
    while tokens and types[len(tokens) - 1] == UNUSED and tokens[-1] == absent(len(tokens) - 1):
        tokens.pop()
    # The library takes the lowest score of all for its unknown characters: what is no piece must not lower it.
    pieces = [[text, scores[i] if types[i] in (NORMAL, UNUSED) else 0.0] for i, text in enumerate(tokens)]
    steps: list[Part] = []
    if charsmap := charsmap_of(vocabulary):
        steps.append({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()})
    if merges := flag(vocabulary, "remove_extra_whitespaces", False):
        steps.append({"type": "Replace", "pattern": {"Regex": r"\A +| +\z"}, "content": ""})
        steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    if merges or flag(vocabulary, "add_space_prefix", False):
        steps.append({"type": "Prepend", "prepend": SPACE})
    steps.append(_SPACES_TO_PIECES)
    unknown = vocabulary.token_id("tokenizer.ggml.unknown_token_id")
    model = {"type": "Unigram", "unk_id": 2 if unknown is None else unknown, "vocab": pieces, "byte_fallback": False}
    return {"normalizer": {"type": "Sequence", "normalizers": steps}, "model": model}


def _wordpiece(vocabulary: Vocabulary, roles: Roles) -> Part:
    lowercase = flag(vocabulary, "normalizer.lowercase", True)
    vocab: dict[str, int] = {}
    for token, text in enumerate(vocabulary.tokens):
        if vocabulary.types[token] != CONTROL and token not in roles.control:
            text = text[1:] if text.startswith(SPACE) else f"##{text}"
        vocab[text] = token
    if len(vocab) != len(vocabulary.tokens):
        raise UnsupportedModel(f"{vocabulary.label}: two of its tokens would be the same text in a tokenizer.json")
    unknown = vocabulary.token_id("tokenizer.ggml.unknown_token_id")
    return {
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": flag(vocabulary, "normalizer.strip_accents", lowercase),
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
