"""Tokenizers from a SentencePiece tokenizer.model and the small JSON files beside it.

Rules: SentencePiece's (normalizer.cc, bpe_model.cc, unigram_model.cc) for the text between special tokens, and
Hugging Face's (tokenization_llama.py, tokenization_t5.py) for everything around it.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.text.tokenizers.byte_level import SPACE, decode_sentencepiece, make_byte_fallback
from sporelm.text.tokenizers.hf_added_tokens import AddedVocabulary, read_added_tokens
from sporelm.text.tokenizers.hf_folder import MAX_TOKENIZER_BYTES, TokenizerFolder, read_limited_bytes
from sporelm.text.tokenizers.longest_match_splitter import LongestMatchSplitter
from sporelm.text.tokenizers.precompiled_charsmap import CharsMap, parse_charsmap
from sporelm.text.tokenizers.sentencepiece_bpe import SentencePieceBpe
from sporelm.text.tokenizers.sentencepiece_model import BPE, SentencePieceModel, parse_sentencepiece_model
from sporelm.text.tokenizers.special_tokens import SpecialTokens, find_stop_ids
from sporelm.text.tokenizers.token_decoder import ByteTokenDecoder
from sporelm.text.tokenizers.token_types import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED
from sporelm.text.tokenizers.tokenizer import Tokenizer
from sporelm.text.tokenizers.tokenizer_pipeline import TokenizerModel, TokenizerPipeline
from sporelm.text.tokenizers.unigram import Unigram, check_total_length

# Classes with other ids than the model's, or with changes to the text before it.
_UNSUPPORTED_CLASSES = frozenset(
    f"{name}Tokenizer"
    for name in (
        "Albert",
        "Barthez",
        "BigBird",
        "Camembert",
        "DebertaV2",
        "FNet",
        "M2M100",
        "MBart",
        "MBart50",
        "Nllb",
        "PLBart",
        "Pegasus",
        "Reformer",
        "RemBert",
        "SeamlessM4T",
        "Speech2Text",
        "XGLM",
        "XLMRoberta",
        "XLNet",
    )
)
_ALL_SPACES = 1 << 30


def load_hf_sentencepiece(path: Path) -> Tokenizer:
    """Return the tokenizer of a tokenizer.model, in a Hugging Face folder or alone.

    Raises ModelFileError for files that are damaged or contradict each other, UnsupportedModel for another kind.
    """
    label = str(path)
    folder = TokenizerFolder(path.parent)
    tokenizer_class = check_tokenizer_class(folder)
    model = parse_sentencepiece_model(read_limited_bytes(path, MAX_TOKENIZER_BYTES), label)
    check_total_length(model.pieces, label)
    added = read_added_tokens(folder, model.pieces, find_extra_ids(folder, model, tokenizer_class), model.named)
    tokenizer_model = _build_model(model, label)
    normalize = _make_normalizer(model, folder, label)
    prefix_once = folder.read_flag("legacy") is False
    leading_spaces = int(model.add_dummy_prefix and folder.read_flag("add_prefix_space") is not False)
    if model.remove_extra_whitespaces:
        leading_spaces = _ALL_SPACES  # one at the beginning of each piece until there is text
    return Tokenizer(
        TokenizerPipeline(added.splitter, tokenizer_model, normalize, prefix_once=prefix_once),
        TokenizerPipeline(added.plain_splitter, tokenizer_model, normalize, prefix_once=prefix_once),
        decoder=_make_decoder(model, added, leading_spaces),
        special=_build_special_tokens(folder, model, added, tokenizer_class),
        chat_templates=folder.read_chat_templates(),
        vocab_size=max(len(model.pieces), *(token + 1 for token in added.texts), 1),
        label=label,
    )


def check_tokenizer_class(folder: TokenizerFolder) -> str:
    """Return the tokenizer's class without "Fast". Raises UnsupportedModel for a class that numbers its tokens
    otherwise."""
    name = folder.config.get("tokenizer_class", "")
    tokenizer_class = str(name).removesuffix("Fast")
    if tokenizer_class in _UNSUPPORTED_CLASSES:
        raise UnsupportedModel(
            f"{folder.path}: {name} numbers its tokens otherwise than its tokenizer.model. Save a tokenizer.json."
        )
    return tokenizer_class


def find_extra_ids(folder: TokenizerFolder, model: SentencePieceModel, tokenizer_class: str) -> dict[str, int]:
    """Return text -> id of the sentinel tokens that T5's class adds without naming them."""
    is_t5 = tokenizer_class == "T5Tokenizer"
    count: Any = folder.config.get("extra_ids", 100 if is_t5 else 0)
    if not is_t5 or "added_tokens_decoder" in folder.config:
        return {}
    if type(count) is not int or not 0 <= count <= 10_000:
        raise ModelFileError(f"{folder.path}: extra_ids is {count!r:.60}, not a number up to 10000")
    return {f"<extra_id_{i}>": len(model.pieces) + count - 1 - i for i in range(count)}


def _build_model(model: SentencePieceModel, label: str) -> TokenizerModel:
    """Return the model that turns normalized text into ids."""
    types = model.types
    unknown = types.index(UNKNOWN)
    encodable = (NORMAL, USER_DEFINED) if model.kind != BPE else (NORMAL,)
    ids = {piece: i for i, piece in enumerate(model.pieces) if types[i] in encodable}
    scores = {piece: model.scores[i] for piece, i in ids.items()}
    byte_ids = {piece: i for i, piece in enumerate(model.pieces) if types[i] == BYTE and model.byte_fallback}
    fallback = make_byte_fallback(byte_ids, unknown)
    if model.kind == BPE:
        if UNUSED in types:
            raise UnsupportedModel(f"{label}: a BPE model with unused pieces is not supported")
        bpe = SentencePieceBpe(ids, scores, fallback, unknown)
        frozen = {piece: i for i, piece in enumerate(model.pieces) if types[i] == USER_DEFINED}
        return _FrozenSymbols(bpe, frozen) if frozen else bpe
    normal_scores = [score for score, kind in zip(model.scores, types, strict=True) if kind == NORMAL]
    for piece, i in ids.items():
        if types[i] == USER_DEFINED:  # the scores of SentencePiece 0.2.3: longer ones win
            scores[piece] = 0.1 * (len(piece.encode()) - 1)
    return Unigram(
        ids,
        scores,
        unknown,
        min_score=min(normal_scores, default=0.0),
        float32=True,
        fallback=fallback if byte_ids else None,
    )


class _FrozenSymbols:
    """A model with symbols that are never merged with their neighbors: at each position the longest one matches."""

    def __init__(self, model: TokenizerModel, frozen: dict[str, int]) -> None:
        self._model = model
        self._frozen = frozen
        self._splitter = LongestMatchSplitter(frozen)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for i, part in enumerate(self._splitter.split(text)):
            ids += [self._frozen[part]] if i % 2 else self._model.encode(part)
        return ids


def _make_normalizer(model: SentencePieceModel, folder: TokenizerFolder, label: str) -> Callable[[str, bool], str]:
    """Return SentencePiece's normalizer: (text, whether a prefix space may be added) -> the normalized text."""
    replace = CharsMap(parse_charsmap(model.charsmap, label))
    user_defined = [piece for piece, kind in zip(model.pieces, model.types, strict=True) if kind == USER_DEFINED]
    splitter = LongestMatchSplitter(user_defined) if user_defined else None
    space = SPACE if model.escape_whitespaces else " "
    adds_space = model.add_dummy_prefix and folder.read_flag("add_prefix_space") is not False
    merges_spaces = model.remove_extra_whitespaces

    def normalize(text: str, add_prefix: bool) -> str:
        if splitter is None:
            text = replace(text)
        else:
            text = "".join([part if i % 2 else replace(part) for i, part in enumerate(splitter.split(text))])
        if merges_spaces:
            text = _SPACES.sub(" ", text).lstrip(" ")
        if not text:
            return ""
        if adds_space and add_prefix:
            text = " " + text
        text = text.replace(" ", space)
        return text.rstrip(space) if merges_spaces else text

    return normalize


_SPACES = re.compile("  +")


def _make_decoder(model: SentencePieceModel, added: AddedVocabulary, leading_spaces: int) -> ByteTokenDecoder:
    pieces = model.pieces
    texts = added.texts
    types = model.types
    byte_pieces = {piece for i, piece in enumerate(pieces) if types[i] == BYTE}

    def get_token_text(token: int) -> str | None:
        if token in texts:
            return texts[token]
        return pieces[token] if 0 <= token < len(pieces) else None

    def to_bytes(text: str) -> bytes:
        return decode_sentencepiece(text, byte_tokens=text in byte_pieces)

    verbatim_ids = {i for i, kind in enumerate(types) if kind in (UNKNOWN, CONTROL)} | set(texts)
    return ByteTokenDecoder(get_token_text, to_bytes, verbatim_ids=verbatim_ids, leading_spaces=leading_spaces)


def _build_special_tokens(
    folder: TokenizerFolder, model: SentencePieceModel, added: AddedVocabulary, tokenizer_class: str
) -> SpecialTokens:
    eos_ids = folder.read_ids("eos_token_id")
    bos_ids = folder.read_ids("bos_token_id")
    bos = added.named_ids.get("bos_token", bos_ids[0] if bos_ids and bos_ids[0] < len(model.pieces) else None)
    eos = added.named_ids.get("eos_token", eos_ids[0] if eos_ids and eos_ids[0] < len(model.pieces) else None)
    add_bos = folder.read_flag("add_bos_token")
    add_eos = folder.read_flag("add_eos_token")
    if add_bos is None:
        add_bos = model.kind == BPE and tokenizer_class != "T5Tokenizer"
    if add_eos is None:
        add_eos = tokenizer_class == "T5Tokenizer"
    control = added.control | {i for i, kind in enumerate(model.types) if kind in (UNKNOWN, CONTROL)}
    control_texts = {added.texts.get(i, model.pieces[i] if i < len(model.pieces) else ""): i for i in control}
    return SpecialTokens(
        bos_id=bos,
        eos_id=eos,
        stop_ids=find_stop_ids([eos, *eos_ids], control_texts),
        control=frozenset(control),
        prefix=(bos,) if add_bos and bos is not None else (),
        suffix=(eos,) if add_eos and eos is not None else (),
        names=added.names,
    )
