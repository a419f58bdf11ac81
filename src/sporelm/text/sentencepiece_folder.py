"""Tokenizers from a SentencePiece tokenizer.model and the small JSON files beside it.

Rules: SentencePiece's (normalizer.cc, bpe_model.cc, unigram_model.cc) for the text between special tokens, and
Hugging Face's (tokenization_llama.py, tokenization_t5.py) for everything around it.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.text.added_tokens import AddedTokens, added_tokens
from sporelm.text.charsmap import Replacements, read_charsmap
from sporelm.text.gguf_spm import spelling
from sporelm.text.hf_folder import MAX_TOKENIZER_BYTES, Folder, bytes_of
from sporelm.text.scored_merges import ScoredMerges
from sporelm.text.sentencepiece_engine import Pieces, SentencePieceEngine
from sporelm.text.sentencepiece_model import BPE, SentencePieceModel, read_model
from sporelm.text.special_tokens import SpecialTokens, stop_ids
from sporelm.text.token_bytes import SPACE, ByteDecoding, bytes_of_sentencepiece
from sporelm.text.token_types import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED
from sporelm.text.tokenizer import Tokenizer
from sporelm.text.unigram import Unigram, check_total_length
from sporelm.text.whole_texts import WholeTexts

# Classes whose ids are not the model's own, or whose text is changed before.
_OTHER_IDS = frozenset(
    f"{name}Tokenizer"
    for name in ("Albert", "Barthez", "BigBird", "Camembert", "DebertaV2", "FNet", "M2M100", "MBart", "MBart50", "Nllb")
) | frozenset(
    f"{name}Tokenizer"
    for name in (
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


def sentencepiece_of_folder(file: Path) -> Tokenizer:
    """The tokenizer of a tokenizer.model, which lies in a Hugging Face folder or alone.

    Raises ModelFileError for files that are damaged or contradict each other, UnsupportedModel for another kind.
    """
    label = str(file)
    folder = Folder(file.parent)
    kind = kind_of_folder(folder)
    model = read_model(bytes_of(file, MAX_TOKENIZER_BYTES), label)
    check_total_length(model.pieces, label)
    added = added_tokens(folder, model.pieces, extra_tokens(folder, model, kind), model.named)
    pieces, normalize = _pieces(model, label), _normalizer(model, folder, label)
    once = folder.flag("legacy") is False
    leading = int(model.add_dummy_prefix and folder.flag("add_prefix_space") is not False)
    if model.remove_extra_whitespaces:
        leading = _ALL  # one at the beginning of each piece until there is text
    plain = added.plain
    return Tokenizer(
        SentencePieceEngine(added.parsing, normalize, pieces, prefix_once=once),
        lambda: SentencePieceEngine(plain, normalize, pieces, prefix_once=once),
        decoding=_decoding(model, added, leading),
        special=_special_tokens(folder, model, added, kind),
        chat_templates=folder.chat_templates(),
        vocab_size=max(len(model.pieces), *(token + 1 for token in added.texts), 1),
        label=label,
    )


def kind_of_folder(folder: Folder) -> str:
    name = folder.config.get("tokenizer_class", "")
    kind = str(name).removesuffix("Fast")
    if kind in _OTHER_IDS:
        raise UnsupportedModel(f"{folder.path}: {name} numbers its tokens otherwise; save it as a tokenizer.json")
    return kind


def extra_tokens(folder: Folder, model: SentencePieceModel, kind: str) -> dict[str, int]:
    """Added tokens that a class has without naming them: the hundred marks of T5."""
    count: Any = folder.config.get("extra_ids", 100 if kind == "T5Tokenizer" else 0)
    if kind != "T5Tokenizer" or "added_tokens_decoder" in folder.config:
        return {}
    if type(count) is not int or not 0 <= count <= 10_000:
        raise ModelFileError(f"{folder.path}: extra_ids is {count!r:.60}, not a number up to 10000")
    return {f"<extra_id_{i}>": len(model.pieces) + count - 1 - i for i in range(count)}


def _pieces(model: SentencePieceModel, label: str) -> Pieces:
    """What turns normalized text into ids."""
    types, unknown = model.types, model.types.index(UNKNOWN)
    wanted = (NORMAL, USER_DEFINED) if model.kind != BPE else (NORMAL,)
    ids = {piece: i for i, piece in enumerate(model.pieces) if types[i] in wanted}
    scores = {piece: model.scores[i] for piece, i in ids.items()}
    bytes_ids = {piece: i for i, piece in enumerate(model.pieces) if types[i] == BYTE and model.byte_fallback}
    spelled = spelling(bytes_ids, unknown)
    if model.kind == BPE:
        if UNUSED in types:
            raise UnsupportedModel(f"{label}: a BPE model with unused pieces is not supported")
        merges = ScoredMerges(ids, scores, spelled, unknown)
        frozen = {piece: i for i, piece in enumerate(model.pieces) if types[i] == USER_DEFINED}
        return _Frozen(merges, frozen) if frozen else merges
    normal = [score for score, kind in zip(model.scores, types, strict=True) if kind == NORMAL]
    for piece, i in ids.items():
        if types[i] == USER_DEFINED:  # the scores that SentencePiece 0.2.3 gives: longer ones win
            scores[piece] = 0.1 * (len(piece.encode()) - 1)
    return Unigram(
        ids, scores, unknown, lowest=min(normal, default=0.0), narrow=True, spelled=spelled if bytes_ids else None
    )


class _Frozen:
    """A model with symbols that never join with their neighbours: at each place the longest is taken."""

    def __init__(self, model: Pieces, frozen: dict[str, int]) -> None:
        self._model, self._frozen = model, frozen
        self._find = WholeTexts(frozen)

    def ids(self, text: str) -> list[int]:
        found: list[int] = []
        for i, part in enumerate(self._find.split(text)):
            found += [self._frozen[part]] if i % 2 else self._model.ids(part)
        return found


def _normalizer(model: SentencePieceModel, folder: Folder, label: str) -> Callable[[str, bool], str]:
    """SentencePiece's normalizer. Its second argument: whether the space in front of a text is due here."""
    replace = Replacements(read_charsmap(model.charsmap, label))
    defined = [piece for piece, kind in zip(model.pieces, model.types, strict=True) if kind == USER_DEFINED]
    kept = WholeTexts(defined) if defined else None
    space = SPACE if model.escape_whitespaces else " "
    prefixed = model.add_dummy_prefix and folder.flag("add_prefix_space") is not False
    merges = model.remove_extra_whitespaces

    def normalize(text: str, first: bool) -> str:
        if kept is None:
            text = replace(text)
        else:
            text = "".join([part if i % 2 else replace(part) for i, part in enumerate(kept.split(text))])
        if merges:
            text = _SPACES.sub(" ", text).lstrip(" ")
        if not text:
            return ""
        if prefixed and first:
            text = " " + text
        text = text.replace(" ", space)
        return text.rstrip(space) if merges else text

    return normalize


_SPACES = re.compile("  +")
_ALL = 1 << 30


def _decoding(model: SentencePieceModel, added: AddedTokens, leading_spaces: int) -> ByteDecoding:
    pieces, texts, types = model.pieces, added.texts, model.types
    bytes_pieces = {piece for i, piece in enumerate(pieces) if types[i] == BYTE}

    def text_of(token: int) -> str | None:
        if token in texts:
            return texts[token]
        return pieces[token] if 0 <= token < len(pieces) else None

    def convert(text: str) -> bytes:
        return bytes_of_sentencepiece(text, byte_tokens=text in bytes_pieces)

    plain = {i for i, kind in enumerate(types) if kind in (UNKNOWN, CONTROL)} | set(texts)
    return ByteDecoding(text_of, convert, plain=plain, leading_spaces=leading_spaces)


def _special_tokens(folder: Folder, model: SentencePieceModel, added: AddedTokens, kind: str) -> SpecialTokens:
    ends, begins = folder.ids("eos_token_id"), folder.ids("bos_token_id")
    bos = added.named.get("bos_token", begins[0] if begins and begins[0] < len(model.pieces) else None)
    eos = added.named.get("eos_token", ends[0] if ends and ends[0] < len(model.pieces) else None)
    add_bos, add_eos = folder.flag("add_bos_token"), folder.flag("add_eos_token")
    if add_bos is None:
        add_bos = model.kind == BPE and kind != "T5Tokenizer"
    if add_eos is None:
        add_eos = kind == "T5Tokenizer"
    control = added.control | {i for i, kind in enumerate(model.types) if kind in (UNKNOWN, CONTROL)}
    texts = {added.texts.get(i, model.pieces[i] if i < len(model.pieces) else ""): i for i in control}
    return SpecialTokens(
        bos_id=bos,
        eos_id=eos,
        stop_ids=stop_ids([eos, *ends], texts),
        control=frozenset(control),
        prefix=(bos,) if add_bos and bos is not None else (),
        suffix=(eos,) if add_eos and eos is not None else (),
        names=added.names,
    )
