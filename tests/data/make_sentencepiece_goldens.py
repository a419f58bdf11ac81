"""Trains small SentencePiece models and writes what the `sentencepiece` package makes of texts with them.

    python tests/data/make_sentencepiece_goldens.py

Needs: sentencepiece (0.2.3 made the files in the tree). Writes sentencepiece/NAME.model and sentencepiece/goldens.json.
"""

import json
import os
import random
from pathlib import Path

import sentencepiece

HERE = Path(__file__).resolve().parent
FOLDER = HERE / "sentencepiece"
ROOT = HERE.parent.parent

# A small character map: one character to several and to none, several to one, and keys that begin alike.
RULES = [
    ("①", "1"),
    ("ﬁ", "fi"),
    ("\u200b", ""),
    ("\u3000", " "),
    ("\t", " "),
    ("\n", " "),
    ("e\u0301", "é"),
    ("e\u0301\u0327", "ȩ́"),
    ("㎏", "kg"),
    ("¨", " \u0308"),
    ("A", "a"),
]
_PLAIN = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
MODELS: dict[str, dict[str, object]] = {
    "llama": _PLAIN
    | {"model_type": "bpe", "vocab_size": 480, "byte_fallback": True, "split_digits": True}
    | {"allow_whitespace_only_pieces": True},
    "crossing": {"model_type": "bpe", "vocab_size": 300, "user_defined_symbols": ["<sep>", "ab", "abc", "  "]}
    | {"split_by_whitespace": False, "remove_extra_whitespaces": False, "add_dummy_prefix": False},
    "unigram": {"model_type": "unigram", "vocab_size": 300, "user_defined_symbols": ["<sep>", "abc", "he"]},
    "spelled": _PLAIN
    | {"model_type": "unigram", "vocab_size": 500, "byte_fallback": True}
    | {"bos_id": -1, "pad_id": 0, "eos_id": 1, "unk_id": 2},
}
TEXTS = [
    "",
    " ",
    "   ",
    "Hello world",
    "  two  spaces \n\n and\tlines ",
    "the theory of the other",
    "▁literal ▁▁ marks▁",
    "<s>not special</s><unk>",
    "<0x41> is no byte",  # old name: the text of a stored golden
    "a<sep>b <sep> abcabab",
    "我想在 apple 工作，1314151天～",
    "нещо на Български",
    "😶‍🌫️ 🚀 ✅",
    "ﬁne ①② ㎏ e\u0301 e\u0301\u0327 e\u0327\u0301 ¨x\u200by",
    "                    return x",
    "=" * 37 + "-" * 23 + "#" * 11 + "''''''\"\"\"",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "0000000 11111 3.14159 1e-5",
    "\x00\x01\x7f",
]


def train(name: str, options: dict[str, object], corpus: Path) -> sentencepiece.SentencePieceProcessor:
    rules = FOLDER / "rules.tsv"
    rules.write_text(
        "".join(f"{' '.join(f'{ord(c):X}' for c in a)}\t{' '.join(f'{ord(c):X}' for c in b)}\n" for a, b in RULES)
    )
    if "normalization_rule_name" not in options:
        options = options | {"normalization_rule_tsv": rules.name}
    prefix = FOLDER / name
    sentencepiece.SentencePieceTrainer.train(
        input=corpus.name, model_prefix=name, minloglevel=2, num_threads=1, hard_vocab_limit=False, **options
    )
    prefix.with_suffix(".vocab").unlink()
    rules.unlink()
    return sentencepiece.SentencePieceProcessor(model_file=str(prefix.with_suffix(".model")))


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    os.chdir(FOLDER)  # models hold the names of the files they were trained with
    source = (ROOT / "LICENSE").read_text()  # a text that stays as it is
    corpus = FOLDER / "corpus.txt"
    corpus.write_text(source + "  indented = 12345 === --- ''' # ...\n我想工作\n" * 20)
    draw = random.Random(1)
    texts = list(TEXTS)
    for _ in range(25):
        parts = []
        for _ in range(draw.randrange(1, 5)):
            start = draw.randrange(len(source))
            parts += [source[start : start + draw.randrange(1, 40)], draw.choice(TEXTS)[:12]]
        texts.append("".join(parts))
    goldens: dict[str, object] = {"texts": texts}
    for name, options in MODELS.items():
        model = train(name, options, corpus)
        ids = [model.encode(text) for text in texts]
        goldens[name] = {
            "ids": ids,
            "decoded": [model.decode(row) if model.unk_id() not in row else None for row in ids],
        }
    corpus.unlink()
    (FOLDER / "goldens.json").write_text(json.dumps(goldens, ensure_ascii=False, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
