"""Small tokenizers of every kind, with control tokens of one's choice, for tests of what a chat's content becomes."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from shutil import copyfile
from typing import Any

import numpy as np

from sporelm.text import Tokenizer, load_tokenizer
from sporelm.text.tokenizers.byte_level import byte_alphabet
from sporelm.text.tokenizers.rwkv_tokenizer import escape_token

LETTERS = [chr(i) for i in range(33, 127)]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SPACE = "▁"
NAMED = ["<unk>", "<s>", "</s>"]
USER_DEFINED = "<think>"  # a token, but not a control token
DATA = Path(__file__).resolve().parent / "data/sentencepiece"


def gguf(kind: str, tokens: Sequence[str], types: Sequence[int], **more: Any) -> Tokenizer:
    """The tokenizer of a GGUF file with this vocabulary."""
    from sporelm.text.tokenizers.load_tokenizer import load_gguf_tokenizer

    found = {"model": kind, "tokens": list(tokens), "token_type": np.array(types, np.int32)} | more
    metadata = {f"tokenizer.ggml.{key}": value for key, value in found.items()}
    return load_gguf_tokenizer(metadata | {"general.architecture": "llama"}, kind)


def control_texts(wanted: Sequence[str]) -> list[str]:
    """Return texts of control tokens, without the ones that every vocabulary here has."""
    return [text for text in dict.fromkeys(wanted) if text not in (*NAMED, USER_DEFINED)]


def gguf_bpe(wanted: Sequence[str], folder: Path) -> Tokenizer:
    tokens = [*NAMED, *byte_alphabet().values(), "in", "er", USER_DEFINED, *control_texts(wanted)]
    types = [3] * 3 + [1] * 258 + [4] + [3] * len(control_texts(wanted))
    return gguf("gpt2", tokens, types, pre="gpt-2", merges=["i n", "e r"], bos_token_id=1, eos_token_id=2)


def gguf_bpe_forging(wanted: Sequence[str], folder: Path) -> Tokenizer:
    """Its merges put letters together to control tokens, and whole pieces are looked up."""
    texts = [text for text in control_texts(wanted) if text.isascii() and " " not in text]
    parts = list(dict.fromkeys(text[:i] for text in texts for i in range(2, len(text)) if text[:i] not in texts))
    merges = list(dict.fromkeys(f"{text[:i]} {text[i]}" for text in texts for i in range(1, len(text))))
    known = [*byte_alphabet().values(), *parts]
    more = [text for text in control_texts(wanted) if text not in known]
    tokens = [*NAMED, *known, *more]
    types = [3] * 3 + [1] * len(known) + [3] * len(more)
    merges = [merge for merge in merges if set(merge.split(" ")) | {merge.replace(" ", "")} <= set(tokens)]
    return gguf("gpt2", tokens, types, pre="llama-bpe", merges=merges, bos_token_id=1, eos_token_id=2)


def gguf_gemma(wanted: Sequence[str], folder: Path) -> Tokenizer:
    more = control_texts(wanted)
    tokens = [*NAMED, *BYTES, SPACE, "\n", *LETTERS, "in", USER_DEFINED, *more]
    types = [2, 3, 3, *[6] * 256, *[1] * (len(LETTERS) + 3), 4, *[3] * len(more)]
    return gguf("gemma4", tokens, types, merges=["i n"], bos_token_id=1, eos_token_id=2, unknown_token_id=0)


def gguf_spm(wanted: Sequence[str], folder: Path, **more: Any) -> Tokenizer:
    texts = control_texts(wanted)
    tokens = [*NAMED, *BYTES, SPACE, *LETTERS, "in", f"{SPACE}i", USER_DEFINED, *texts]
    types = [2, 3, 3, *[6] * 256, *[1] * (len(LETTERS) + 3), 4, *[3] * len(texts)]
    scores = np.zeros(len(tokens), np.float32) - np.arange(len(tokens), dtype=np.float32)
    return gguf("llama", tokens, types, scores=scores, **more)


def gguf_spm_bare(wanted: Sequence[str], folder: Path) -> Tokenizer:
    return gguf_spm(wanted, folder, add_space_prefix=False)


def gguf_unigram(wanted: Sequence[str], folder: Path) -> Tokenizer:
    """Some of its control tokens are called normal ones, as in files that people made."""
    texts = control_texts(wanted)
    tokens = ["<pad>", "</s>", "<unk>", SPACE, *LETTERS, "in", f"{SPACE}i", USER_DEFINED, "<s>"]
    types = [3, 3, 2, *[1] * (len(LETTERS) + 3), 4, 3, *[3] * len(texts)]
    tokens += [text for text in texts if text not in tokens]
    scores = -np.arange(len(tokens), dtype=np.float32) / 8
    types = types[: len(tokens)]
    types = [1 if token == "<|im_end|>" else kind for token, kind in zip(tokens, types, strict=True)]
    return gguf("t5", tokens, types, scores=scores, add_space_prefix=True)


def gguf_wordpiece(wanted: Sequence[str], folder: Path) -> Tokenizer:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    texts = [text for text in dict.fromkeys(wanted) if text not in special]
    letters = [letter for letter in LETTERS if not letter.isupper()]
    tokens = [*special, *(SPACE + letter for letter in letters), *letters, *texts]
    tokens = list(dict.fromkeys(tokens))
    types = [3] * 4 + [1] * (2 * len(letters)) + [3] * (len(tokens) - 4 - 2 * len(letters))
    return gguf("bert", tokens, types, unknown_token_id=1, bos_token_id=2, seperator_token_id=3)


def gguf_rwkv(wanted: Sequence[str], folder: Path) -> Tokenizer:
    texts = [escape_token(text.encode()) for text in dict.fromkeys(wanted) if text != "<s>"]
    tokens = ["<s>", *(escape_token(bytes([byte])) for byte in range(256)), "in", "er", *texts]
    return gguf("rwkv", tokens, [3, *[1] * 258, *[3] * len(texts)], bos_token_id=0, eos_token_id=0)


def gguf_plamo(wanted: Sequence[str], folder: Path) -> Tokenizer:
    texts = control_texts(wanted)
    tokens = ["<unk>", "<s>", "</s>", "<pad>", *BYTES, *LETTERS, " ", "in", *[t for t in texts if t != "<pad>"]]
    types = [2, 3, 3, 3, *[6] * 256, *[1] * (len(LETTERS) + 2)]
    types += [3] * (len(tokens) - len(types))
    return gguf("plamo2", tokens, types, scores=np.zeros(len(tokens), np.float32) - 1)


def saved(library: Any, folder: Path, wanted: Sequence[str], **flags: bool) -> Tokenizer:
    """A tokenizer of the library with these control tokens, through a folder."""
    from tokenizers import AddedToken

    flags = {"normalized": False} | flags
    texts = list(dict.fromkeys([*NAMED, *wanted]))
    library.add_special_tokens([AddedToken(text, **flags) for text in texts if text != USER_DEFINED])
    library.add_tokens([AddedToken(USER_DEFINED, normalized=False)])
    library.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return load_tokenizer(folder)


def hf_byte_level(wanted: Sequence[str], folder: Path, **flags: bool) -> Tokenizer:
    from tokenizers import Tokenizer as Library
    from tokenizers import models, normalizers, pre_tokenizers

    vocab = {letter: i for i, letter in enumerate((*NAMED, *byte_alphabet().values(), "in"))}
    made = Library(models.BPE(vocab=vocab, merges=[("i", "n")]))
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return saved(made, folder, wanted, **flags)


def hf_stripping(wanted: Sequence[str], folder: Path) -> Tokenizer:
    """Its control tokens take the spaces around them."""
    return hf_byte_level(wanted, folder, lstrip=True, rstrip=True)


def hf_single_word(wanted: Sequence[str], folder: Path) -> Tokenizer:
    """Its control tokens are none beside letters."""
    return hf_byte_level(wanted, folder, single_word=True)


def hf_compatibility(wanted: Sequence[str], folder: Path) -> Tokenizer:
    """Its control tokens are looked for in what NFKC makes of a text: other letters become them too."""
    from tokenizers import Tokenizer as Library
    from tokenizers import models, normalizers, pre_tokenizers

    vocab = {letter: i for i, letter in enumerate((*NAMED, *byte_alphabet().values(), "in"))}
    made = Library(models.BPE(vocab=vocab, merges=[("i", "n")]))
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return saved(made, folder, wanted, normalized=True)


def hf_prepending(wanted: Sequence[str], folder: Path) -> Tokenizer:
    """A space is put in front of every fragment, as Llama 2's tokenizer.json does."""
    from tokenizers import Tokenizer as Library
    from tokenizers import models, normalizers

    vocab = {letter: i for i, letter in enumerate((*NAMED, *BYTES, SPACE, *LETTERS, "in", f"{SPACE}i"))}
    merges = [("i", "n"), (SPACE, "i")]
    made = Library(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    return saved(made, folder, wanted)


def hf_unigram(wanted: Sequence[str], folder: Path) -> Tokenizer:
    """Letters are put together to its control tokens; a space is put in front of the first fragment alone."""
    from tokenizers import Tokenizer as Library
    from tokenizers import models, normalizers, pre_tokenizers

    texts = control_texts(wanted)
    pieces = [*NAMED, SPACE, *LETTERS, "in", *[text for text in texts if len(text) > 1]]
    made = Library(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=0, byte_fallback=False))
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return saved(made, folder, wanted)


def hf_wordpiece(wanted: Sequence[str], folder: Path) -> Tokenizer:
    from tokenizers import Tokenizer as Library
    from tokenizers import models, normalizers, pre_tokenizers

    letters = [letter for letter in LETTERS if not letter.isupper()]
    vocab = {letter: i for i, letter in enumerate((*NAMED, *letters, *(f"##{letter}" for letter in letters)))}
    made = Library(models.WordPiece(vocab, unk_token="<unk>"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return saved(made, folder, wanted)


def hf_words(wanted: Sequence[str], folder: Path) -> Tokenizer:
    """A tokenizer of words between spaces; some words are control tokens."""
    from tokenizers import Tokenizer as Library
    from tokenizers import models, pre_tokenizers

    vocab = {word: i for i, word in enumerate(dict.fromkeys((*NAMED, *wanted, *LETTERS, "user", "system")))}
    made = Library(models.WordLevel(vocab, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return saved(made, folder, wanted)


def sentencepiece(wanted: Sequence[str], folder: Path, *, model: str = "llama", **flags: bool) -> Tokenizer:
    """A tokenizer.model with added tokens beside it."""
    copyfile(DATA / f"{model}.model", folder / "tokenizer.model")
    flags = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False} | flags
    bare = load_tokenizer(folder)
    first = bare.vocab_size
    texts = [*control_texts(wanted), USER_DEFINED]
    added = {str(first + i): {"content": text, "special": text != USER_DEFINED} | flags for i, text in enumerate(texts)}
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    return load_tokenizer(folder / "tokenizer.model")


def sentencepiece_unigram(wanted: Sequence[str], folder: Path) -> Tokenizer:
    return sentencepiece(wanted, folder, model="unigram", rstrip=True)


KINDS: dict[str, Callable[[Sequence[str], Path], Tokenizer]] = {
    make.__name__: make
    for make in (
        gguf_bpe,
        gguf_bpe_forging,
        gguf_gemma,
        gguf_spm,
        gguf_spm_bare,
        gguf_unigram,
        gguf_wordpiece,
        gguf_rwkv,
        gguf_plamo,
        hf_byte_level,
        hf_stripping,
        hf_single_word,
        hf_compatibility,
        hf_prepending,
        hf_unigram,
        hf_wordpiece,
        hf_words,
        sentencepiece,
        sentencepiece_unigram,
    )
}
