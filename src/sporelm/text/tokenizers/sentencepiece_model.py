"""Reads SentencePiece's tokenizer.model: a protocol-buffers message, ModelProto, of sentencepiece_model.proto.

Only the fields that affect ids are read; all others are skipped. Wire format: protobuf.dev, "Encoding".
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.text.tokenizers.token_types import BYTE, NORMAL, UNKNOWN

UNIGRAM, BPE = 1, 2
_KINDS = {1: "unigram", 2: "BPE", 3: "word", 4: "char"}
MAX_PIECES = 1 << 22
MAX_PIECE_BYTES = 1 << 16


@dataclass
class SentencePieceModel:
    """The contents of a tokenizer.model.

    pieces, scores, types        by id
    kind                         UNIGRAM or BPE
    charsmap                     the compiled character map; empty: none
    add_dummy_prefix             a space is put in front of a text
    remove_extra_whitespaces     runs of spaces become one, those around a text are removed
    escape_whitespaces           spaces are written as ▁
    named                        "bos_token", ... -> text, of the tokens that the model uses
    """

    pieces: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    types: list[int] = field(default_factory=list)
    kind: int = UNIGRAM
    byte_fallback: bool = False
    suffix_spaces: bool = False
    charsmap: bytes = b""
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True
    escape_whitespaces: bool = True
    named: dict[str, str] = field(default_factory=dict)


def parse_sentencepiece_model(data: bytes, label: str) -> SentencePieceModel:
    """Return the model in `data`. Raises ModelFileError for a damaged one, UnsupportedModel for an unsupported kind."""
    model = SentencePieceModel()
    for number, value in _fields(data, label):
        if number == 1:
            _add_piece(model, _bytes(value, label), label)
        elif number == 2:
            _read_trainer(model, _bytes(value, label), label)
        elif number == 3:
            _read_normalizer(model, _bytes(value, label), label)
    _check(model, label)
    return model


def _check(model: SentencePieceModel, label: str) -> None:
    if not model.pieces:
        raise _make_error(label, "it has no pieces")
    if model.kind not in (UNIGRAM, BPE):
        kind = _KINDS.get(model.kind, str(model.kind))
        raise UnsupportedModel(f"{label}: SentencePiece models of type {kind} are not supported; unigram and BPE are")
    if model.suffix_spaces:
        raise UnsupportedModel(f"{label}: treat_whitespace_as_suffix is not supported")
    if len(set(model.pieces)) != len(model.pieces):
        first: dict[str, int] = {}
        for i, piece in enumerate(model.pieces):
            if first.setdefault(piece, i) != i:
                raise _make_error(label, f"{i} and {first[piece]} are the same piece {piece[:60]!r}")
    if model.types.count(UNKNOWN) != 1:
        raise _make_error(label, f"it has {model.types.count(UNKNOWN)} unknown pieces, not one")


def _add_piece(model: SentencePieceModel, data: bytes, label: str) -> None:
    index = len(model.pieces)
    if index >= MAX_PIECES:
        raise _make_error(label, f"it has more than {MAX_PIECES} pieces")
    text, score, kind = "", 0.0, NORMAL
    for number, value in _fields(data, label):
        if number == 1:
            text = _text(_bytes(value, label), label)
        elif number == 2:
            if not isinstance(value, float):
                raise _make_error(label, f"the score of piece {index} is not a float")
            score = value
        elif number == 3:
            kind = _integer(value, label)
    if not text or score != score or not NORMAL <= kind <= BYTE:
        raise _make_error(label, f"piece {index} is {text[:60]!r}, score {score}, type {kind}")
    model.pieces.append(text)
    model.scores.append(score)
    model.types.append(kind)


def _read_trainer(model: SentencePieceModel, data: bytes, label: str) -> None:
    names = {"unk_token": ("<unk>", 0), "bos_token": ("<s>", 1), "eos_token": ("</s>", 2), "pad_token": ("<pad>", -1)}
    texts = {name: text for name, (text, _) in names.items()}
    ids = {name: token for name, (_, token) in names.items()}
    for number, value in _fields(data, label):
        if number == 3:
            model.kind = _integer(value, label)
        elif number == 24:
            model.suffix_spaces = bool(_integer(value, label))
        elif number == 35:
            model.byte_fallback = bool(_integer(value, label))
        elif 40 <= number <= 43:
            ids[list(names)[number - 40]] = _integer(value, label)
        elif 45 <= number <= 48:
            texts[list(names)[number - 45]] = _text(_bytes(value, label), label)
    model.named = {name: texts[name] for name, token in ids.items() if token >= 0}


def _read_normalizer(model: SentencePieceModel, data: bytes, label: str) -> None:
    for number, value in _fields(data, label):
        if number == 2:
            model.charsmap = _bytes(value, label)
        elif number == 3:
            model.add_dummy_prefix = bool(_integer(value, label))
        elif number == 4:
            model.remove_extra_whitespaces = bool(_integer(value, label))
        elif number == 5:
            model.escape_whitespaces = bool(_integer(value, label))


def _fields(data: bytes, label: str) -> Iterator[tuple[int, int | float | bytes]]:
    """Yield each field's number and value: an integer (signed, 64 bits), a float, or bytes."""
    position = 0
    size = len(data)
    while position < size:
        key, position = _varint(data, position, label)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, position = _varint(data, position, label)
            yield number, value - (1 << 64) if value >> 63 else value
            continue
        if wire == 2:
            length, position = _varint(data, position, label)
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
        else:
            raise _make_error(label, f"wire type {wire} at byte {position}")
        if length > size - position:
            raise _make_error(label, f"a field of {length} bytes where {size - position} remain")
        payload = data[position : position + length]
        position += length
        yield number, struct.unpack("<f", payload)[0] if wire == 5 else payload


def _varint(data: bytes, position: int, label: str) -> tuple[int, int]:
    """Return the number at `position`, and the position after it."""
    value = shift = 0
    while position < len(data) and shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (1 << 64) - 1, position
        shift += 7
    raise _make_error(label, f"a number that does not end at byte {position}")


def _bytes(value: int | float | bytes, label: str) -> bytes:
    if not isinstance(value, bytes):
        raise _make_error(label, "a number in place of bytes")
    return value


def _integer(value: int | float | bytes, label: str) -> int:
    if not isinstance(value, int):
        raise _make_error(label, "bytes or a float in place of an integer")
    return value


def _text(data: bytes, label: str) -> str:
    if len(data) > MAX_PIECE_BYTES:
        raise _make_error(label, f"a piece of {len(data)} bytes, more than {MAX_PIECE_BYTES}")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise _make_error(label, "a piece is not UTF-8") from None


def _make_error(label: str, reason: str) -> ModelFileError:
    return ModelFileError(f"{label} is not a valid SentencePiece model: {reason}")
