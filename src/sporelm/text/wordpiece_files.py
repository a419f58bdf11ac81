"""vocab.txt, as folders of BERT and its kin from before tokenizer.json have it: WordPiece, a token a line.

What each class of transformers does before and after it: its tokenization_bert.py and tokenization_mpnet.py.
"""

from typing import Any

from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.text.class_framing import class_of
from sporelm.text.hf_folder import MAX_TOKENIZER_BYTES, Folder, bytes_of

_SPECIAL = {
    "BertTokenizer": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    "MPNetTokenizer": ("<pad>", "[UNK]", "<s>", "</s>", "<mask>"),
}
_LIKE_BERT = ("DistilBertTokenizer", "ElectraTokenizer")
_NAMES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")


def spec_of_vocab_txt(folder: Folder) -> dict[str, Any] | None:
    """A folder's vocab.txt as the tokenizer.json it amounts to; None where there is none. What stands around texts is
    added by the class.

    Raises ModelFileError for a damaged file, UnsupportedModel for a class that is not known to cut as BERT's does.
    """
    path = folder.path / "vocab.txt"
    if not path.is_file():
        return None
    name = class_of(folder.config, folder.model.get("model_type"))
    special = _SPECIAL.get("BertTokenizer" if name in _LIKE_BERT else name)
    if special is None:
        raise UnsupportedModel(f"{path}: how {name[:60]!r} uses it is not known here; save a tokenizer.json")
    ids = _ids(bytes_of(path, MAX_TOKENIZER_BYTES))
    known = folder.names()
    texts = [known.get(role, usual) for role, usual in zip(_NAMES, special, strict=True)]
    if texts[1] not in ids:
        raise ModelFileError(f"{path} has no token {texts[1][:60]!r}, which stands for what is unknown")
    lowers = folder.flag("do_lower_case")
    chinese = folder.flag("tokenize_chinese_chars")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added(text, ids[text]) for text in sorted({*texts} & ids.keys(), key=lambda text: ids[text])],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True if chinese is None else chinese,
            "strip_accents": folder.flag("strip_accents"),
            "lowercase": True if lowers is None else lowers,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": None,
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": texts[1],
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": ids,
        },
    }


def _ids(data: bytes) -> dict[str, int]:
    """Token -> the number of its line, of the last where it stands in several."""
    lines = data.decode("utf-8", "replace").split("\n")
    if lines and not lines[-1]:
        lines.pop()
    return {line.rstrip("\r"): number for number, line in enumerate(lines)}


def _added(text: str, token: int) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token, "content": text, "special": True} | flags
