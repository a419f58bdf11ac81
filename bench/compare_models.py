"""Write the models that `compare_base.py` runs: every case of tests/families, as a folder and as a GGUF file.

Usage: PYTHONPATH=TREE/src:TREE/tests python bench/compare_models.py FOLDER [--only PATTERN] [--part I/N]

This runs with the source and the tests of the base commit only, so it may use names that exist nowhere else. The list
of what it wrote is FOLDER/models.json.
"""
# ruff: noqa: I001  whether a module of the base's tests still exists here must not decide the order of imports

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from compare_results import run_command
from encoder_files import write_encoder
from families import EVERY, WHOLE, Case, write_case
from hf_folders import tokenizer_json, write_tokenizer

# The wide Llama is quantized to each of these, and the quantized models are run. Wide models of other families are
# quantized to Q4_K_M, whose choice of formats depends on the family's tensors.
TYPES = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K", "IQ4_NL", "IQ4_XS")
TYPES += ("TQ1_0", "TQ2_0", "MXFP4", "F16", "BF16")
QUANTIZED = {"llama": TYPES, "qwen3moe": ("Q4_K_M", "Q8_0"), "deepseek3": ("Q4_K_M",), "qwen35": ("Q4_0",)}


def write(folder: Path, case: Case) -> Path:
    """A Hugging Face folder of the case, with a tokenizer."""
    if case.reads:
        return write_encoder(folder, case)
    write_case(folder, case)
    write_tokenizer(folder, tokenizer_json(case.model.config.vocab))
    return folder


def described(case: Case, name: str, path: Path, root: Path) -> dict[str, Any]:
    """Return the entry of a model for `compare_results.py`."""
    scores = case.config["architectures"][0].endswith("ForSequenceClassification")
    kind = "reranker" if scores else "encoder" if case.reads else "decoder"
    return {"name": name, "path": path.relative_to(root).as_posix(), "kind": kind, "ids": case.ids()}


def write_models(root: Path, cases: list[Case]) -> dict[str, list[dict[str, Any]]]:
    """Write all models; return those to run, and those to quantize with their types."""
    run: list[dict[str, Any]] = []
    quantize: list[dict[str, Any]] = []
    for number, case in enumerate(cases, 1):
        place = write(root / case.name, case)
        run.append(described(case, f"{case.name} folder", place, root))
        file = root / f"{case.name}.gguf"
        if run_command("gguf", "from-hf", place, "-o", file) == "":
            run.append(described(case, f"{case.name} gguf", file, root))
        if case.wide is not None and not case.reads:
            wide, source = case.widened(), root / f"{case.name}-wide.gguf"
            place = write(root / f"{case.name}-wide", wide)
            if run_command("gguf", "from-hf", place, "-o", source, "--type", "f16") == "":
                types = QUANTIZED.get(case.name, ("Q4_K_M",))
                quantize.append({"name": f"{case.name}-wide", "path": source.name, "types": types})
                for kind in types if case.name in QUANTIZED else ():
                    file = root / f"{case.name}-wide-{kind}.gguf"
                    if run_command("gguf", "quantize", source, "-t", kind, "-o", file) == "":
                        run.append(described(wide, f"{case.name}-wide {kind}", file, root))
            shutil.rmtree(place)
        print(f"{number}/{len(cases)} {case.name}", flush=True)
    return {"run": run, "quantize": quantize}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--part", default="1/1")
    options = parser.parse_args()
    index, count = map(int, options.part.split("/"))
    cases = [case for case in (*EVERY, *WHOLE) if options.only in case.name][index - 1 :: count]
    options.folder.mkdir(parents=True, exist_ok=True)
    models = write_models(options.folder, cases)
    (options.folder / "models.json").write_text(json.dumps(models))


if __name__ == "__main__":
    main()
