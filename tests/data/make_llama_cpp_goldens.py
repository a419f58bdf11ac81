"""Writes sentencepiece/llama_cpp.json: what llama.cpp makes of texts with vocabularies of ../shared.

    python tests/data/make_llama_cpp_goldens.py FOLDER_OF_LIBLLAMA

The library is the one that bench/peer.sh builds. `special` and `plain` are ids with special tokens parsed or not,
`text` is what llama_detokenize makes of the former.
"""

import ctypes
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
FILE = HERE / "sentencepiece" / "llama_cpp.json"


def detokenized(library: Any, vocabulary: int, ids: list[int]) -> str:
    room = ctypes.create_string_buffer(64 + 256 * len(ids))
    numbers = (ctypes.c_void_p, ctypes.c_int32)
    library.llama_detokenize.argtypes = (
        ctypes.c_void_p,
        *numbers,
        ctypes.c_char_p,
        ctypes.c_int32,
        *[ctypes.c_bool] * 2,
    )
    array = (ctypes.c_int32 * max(len(ids), 1))(*ids)
    count = library.llama_detokenize(vocabulary, array, len(ids), room, len(room), False, True)
    return room.raw[:count].decode("utf-8", "replace")


def main(place: str) -> None:
    spec = importlib.util.spec_from_file_location("peer_vocab", ROOT / "bench" / "peer_vocab.py")
    assert spec
    assert spec.loader
    peer_vocab = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(peer_vocab)
    library = peer_vocab.load_library(Path(place))
    goldens = {"texts": json.loads(FILE.read_text(encoding="utf-8"))["texts"]}
    for name in ("llama-spm", "phi-3", "bert-bge"):
        with peer_vocab.PeerVocab(library, ROOT.parent / f"shared/data/vocabs/ggml-vocab-{name}.gguf") as peer:
            special = [peer.encode(text, parse_special=True) for text in goldens["texts"]]
            goldens[name] = {
                "special": special,
                "plain": [peer.encode(text) for text in goldens["texts"]],
                "text": [detokenized(library, peer._vocab, ids) for ids in special],
            }
    FILE.write_text(json.dumps(goldens, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
