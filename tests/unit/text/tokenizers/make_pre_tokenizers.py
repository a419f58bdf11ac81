"""Asks llama.cpp for the ids that each way to cut gives: writes pre_tokenizers.json, which the tests read.

Usage: python tests/unit/text/tokenizers/make_pre_tokenizers.py LIBRARY GPT2_VOCAB
LIBRARY is libllama or the folder that holds it (bench/peer.sh builds it), GPT2_VOCAB the file ggml-vocab-gpt-2.gguf.
"""

import json
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[3]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "bench"), str(HERE)]

from peer_vocab import PeerVocab, load_library  # noqa: E402
from pre_tokenizer_cases import BYTE_LEVEL, RAW, TEXTS, raw_vocabulary  # noqa: E402

from sporelm.files.gguf import GgufWriter, open_gguf  # noqa: E402


def write(path: Path, metadata: dict[str, Any]) -> None:
    """A GGUF file of nothing but `metadata`."""
    writer = GgufWriter(path)
    for key, value in metadata.items():
        writer.add(key, list(value) if key.endswith((".tokens", ".merges")) else value)
    writer.write()


def cases(library: Any, metadata: dict[str, Any], names: Iterable[str]) -> list[dict[str, Any]]:
    """One entry for each text and different answer: the text, the names that give it, the ids."""
    answers: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            path = Path(folder) / "vocab.gguf"
            write(path, metadata | {"tokenizer.ggml.pre": name})
            with PeerVocab(library, path) as vocab:
                for text in TEXTS:
                    answers.setdefault((text, tuple(vocab.encode(text))), []).append(name)
    return [{"text": text, "names": who, "ids": list(ids)} for (text, ids), who in answers.items()]


def main(library_place: str, vocab: str) -> None:
    library = load_library(Path(library_place))
    metadata = dict(open_gguf(vocab).metadata)
    plain = {key: value for key, value in metadata.items() if not key.startswith("tokenizer.")}
    found = {
        "gpt-2": cases(library, metadata, BYTE_LEVEL),
        "raw": cases(library, plain | raw_vocabulary(), RAW),
    }
    lines = [f' "{kind}": [\n' + ",\n".join(f"  {json.dumps(one)}" for one in found[kind]) + "\n ]" for kind in found]
    (HERE / "pre_tokenizers.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
