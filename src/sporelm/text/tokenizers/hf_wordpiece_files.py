"""vocab.txt: a WordPiece vocabulary with a token on each line, the format of BERT models before tokenizer.json.

Source of each class's rules: transformers' tokenization_bert.py and tokenization_mpnet.py.
"""

from typing import Any

from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.text.tokenizers.hf_folder import MAX_TOKENIZER_BYTES, TokenizerFolder, read_limited_bytes
from sporelm.text.tokenizers.hf_post_processor import get_tokenizer_class

_SPECIAL = {
    "BertTokenizer": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    "MPNetTokenizer": ("<pad>", "[UNK]", "<s>", "</s>", "<mask>"),
}
_BERT_CLASSES = ("DistilBertTokenizer", "ElectraTokenizer")
_NAMES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")


def read_vocab_txt(folder: TokenizerFolder) -> dict[str, Any] | None:
    """Return the tokenizer.json equivalent to a folder's vocab.txt; None if it is absent. The post-processor is added
    by the class.

    Raises ModelFileError for a damaged file, UnsupportedModel for a class whose rules are not known.
    """
    path = folder.path / "vocab.txt"
    if not path.is_file():
        return None
    name = get_tokenizer_class(folder.config, folder.model.get("model_type"))
    special = _SPECIAL.get("BertTokenizer" if name in _BERT_CLASSES else name)
    if special is None:
        raise UnsupportedModel(
            f"{path}: tokenizer class is not supported with vocab.txt (got {name[:60]!r}; allowed "
            f"{', '.join((*_SPECIAL, *_BERT_CLASSES))}). Save a tokenizer.json."
        )
    ids = _number_lines(read_limited_bytes(path, MAX_TOKENIZER_BYTES))
    names = folder.read_names()
    texts = [names.get(name, default) for name, default in zip(_NAMES, special, strict=True)]
    if texts[1] not in ids:
        raise ModelFileError(f"{path} has no unknown token {texts[1][:60]!r}")
    lowercase = folder.read_flag("do_lower_case")
    handle_chinese = folder.read_flag("tokenize_chinese_chars")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _make_added_token(text, ids[text]) for text in sorted({*texts} & ids.keys(), key=lambda text: ids[text])
        ],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True if handle_chinese is None else handle_chinese,
            "strip_accents": folder.read_flag("strip_accents"),
            "lowercase": True if lowercase is None else lowercase,
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


def _number_lines(data: bytes) -> dict[str, int]:
    """Return token -> the number of its line, the last one if it occurs more than once."""
    lines = data.decode("utf-8", "replace").split("\n")
    if lines and not lines[-1]:
        lines.pop()
    return {line.rstrip("\r"): number for number, line in enumerate(lines)}


def _make_added_token(text: str, token: int) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token, "content": text, "special": True} | flags
