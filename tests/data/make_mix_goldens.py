"""Writes mix_goldens.json: the type that llama.cpp's quantizer gives every matrix of synthetic models, in every mix.

    PYTHONPATH=src:tests python tests/data/make_mix_goldens.py LLAMA_QUANTIZE

The program is one that bench/peer.sh's build has too (target llama-quantize). Each case is a text with a sign for each
matrix, in the quantizer's order; "codes" says which type a sign is. A case that the program refuses is null.
"""

import json
import string
import sys
import tempfile
from pathlib import Path

import numpy as np

from mix_models import MODELS, MixModel, peer_types, write
from sporelm.quant.ggml_types import GGML_TYPES
from sporelm.quant.quant_mixes import MIXES, sort_tensor_names
from sporelm.tools.imatrix_file import Imatrix, ImatrixEntry, write_imatrix

FILE = Path(__file__).with_name("mix_goldens.json")
CODES = dict(zip(sorted(known.name for known in GGML_TYPES.values()), string.ascii_letters, strict=False))
OPTIONS = {
    "pure": ("--pure",),
    "output": ("--output-tensor-type", "q5_0"),
    "embedding": ("--token-embedding-type", "q5_1"),
    "override": ("--tensor-type", r"blk\.[01]\..*attn_v=q8_0"),
}


def synthetic_imatrix(model: MixModel, path: Path) -> str:
    entries = {
        name: ImatrixEntry(np.ones((shape[0] if len(shape) == 3 else 1, shape[-1]), np.float32), np.array([1]))
        for name, shape in model.shapes().items()
        if len(shape) > 1 and name.startswith("blk.")
    }
    entries = {name: ImatrixEntry(found.sums, np.ones(len(found.sums), np.int64)) for name, found in entries.items()}
    write_imatrix(path, Imatrix(entries, ("ones",), 1))
    return str(path)


def main(program: str) -> None:
    goldens: dict[str, dict[str, str | None]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for model in MODELS:
            path = write(model, Path(folder) / "model.gguf")
            weighted = ("--imatrix", synthetic_imatrix(model, Path(folder) / "imatrix.gguf"))
            cases = {(mix, ""): () for mix in MIXES} | {(mix, "imatrix"): weighted for mix in MIXES}
            cases |= {("Q4_K_M", name): options for name, options in OPTIONS.items()}
            matrices = [name for name in sort_tensor_names(list(model.shapes())) if len(model.shapes()[name]) > 1]
            goldens[model.name] = {}
            for (mix, name), options in cases.items():
                types = peer_types(Path(program), path, mix, options)
                if types is not None and int(types["general.file_type"]) != MIXES[mix].file_type:
                    raise SystemExit(f"{mix} is file type {types['general.file_type']}")
                signs = None if types is None else "".join(CODES[types[matrix]] for matrix in matrices)
                goldens[model.name][f"{mix} {name}".strip()] = signs
    text = json.dumps({"codes": CODES, "models": goldens}, indent=0)
    FILE.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
