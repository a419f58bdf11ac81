"""Writes imatrix_golden_new.bin (GGUF) and imatrix_golden_old.bin (".dat"): what llama-imatrix gathers, of llama.cpp.

    PYTHONPATH=src:tests python tests/data/make_imatrix_goldens.py LLAMA_IMATRIX

The program is one that bench/peer.sh's build has too (target llama-imatrix).
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from imatrix_models import CONTEXT, DATASET, TEXT, write

HERE = Path(__file__).parent


def main(program: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = write(Path(folder) / "model.gguf")
        (Path(folder) / DATASET).write_text(TEXT, encoding="utf-8")
        given, sizes = ["-m", str(model), "-t", "1"], ["-c", str(CONTEXT), "-b", str(CONTEXT), "--no-ppl"]
        new, old = str(HERE / "imatrix_golden_new.bin"), str(HERE / "imatrix_golden_old.bin")
        for command in (
            [program, *given, *sizes, "-f", DATASET, "-o", new, "--output-format", "gguf"],
            [program, *given, *sizes, "-f", DATASET, "-o", old, "--output-format", "dat"],
        ):
            subprocess.run(command, check=True, cwd=folder)


if __name__ == "__main__":
    main(sys.argv[1])
