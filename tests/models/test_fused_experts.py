"""GGUF files that hold the gates and the up parts of experts in one tensor, as llama.cpp's converter writes Gemma 4.

And folders of Llama 4 that hold each matrix by itself.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from available import open_available
from close import assert_close
from families import CASES, write_case
from hf_folders import tokenizer_json, write_tokenizer
from sporelm.tools.hf.from_hf import from_hf
from sporelm.tools.lazy_model import LazyTensor
from sporelm.tools.output_file import OutputFile, save_models
from stepping import Stepper


def joined(gate: LazyTensor, up: LazyTensor) -> LazyTensor:
    """Both, expert by expert: [experts, both, in]."""
    experts, rows, width = gate.shape
    blocks = [part.read(0, part.block_count).reshape(experts, -1, gate.read(0, 1).shape[-1]) for part in (gate, up)]
    both = np.concatenate(blocks, axis=1).reshape(-1, blocks[0].shape[-1])
    name = gate.name.replace("gate", "gate_up")
    return replace(gate, name=name, shape=(experts, 2 * rows, width), read=lambda start, stop: both[start:stop])


@pytest.mark.parametrize("form", ["f32", "q8_0"])
def test_gates_and_up_parts_in_one_tensor(form: str, load: Callable[..., Stepper], tmp_path: Path) -> None:
    (case,) = (case.widened() for case in CASES if case.name == "gemma4-experts")
    folder = write_case(tmp_path / "model", case)
    write_tokenizer(folder, tokenizer_json(case.model.config.vocab))
    model = from_hf(folder, type_name=form).model
    tensors = {tensor.name: tensor for tensor in model.tensors}
    for name in [name for name in tensors if name.endswith("ffn_gate_exps.weight")]:
        both = joined(tensors.pop(name), tensors.pop(name.replace("gate", "up")))
        tensors[both.name] = both
    files = {"apart": model, "joined": replace(model, tensors=list(tensors.values()))}
    save_models([OutputFile(tmp_path / f"{name}.gguf", made) for name, made in files.items()])
    cpu = open_available("cpu", threads=1)
    runners = [load(tmp_path / f"{name}.gguf", cpu, context=64, eager=True) for name in files]
    wanted, found = (runner.step([(0, case.ids()[:9])])["logits"] for runner in runners)
    assert_close(found, wanted, "exact")
    for runner in runners:
        runner.close()
    cpu.close()


@pytest.mark.parametrize("inner", ["", "language_model."])
def test_matrices_of_llama_4_by_themselves(inner: str, load: Callable[..., Stepper], tmp_path: Path) -> None:
    (case,) = (case for case in CASES if case.name == "llama4-steps-scaled")
    places = [write_case(tmp_path / name, case) for name in ("fused", "single")]
    tensors, single = load_file(places[1] / "model.safetensors"), {}
    for name, values in tensors.items():
        block = name.rpartition("experts.")[0] + "experts."
        if name.endswith("experts.gate_up_proj"):
            for expert, both in enumerate(values):
                for part, matrix in zip(("gate", "up"), np.split(both.T, 2), strict=True):
                    single[f"{inner}{block}{expert}.{part}_proj.weight"] = np.ascontiguousarray(matrix)
        elif name.endswith("experts.down_proj"):
            single |= {
                f"{inner}{block}{expert}.down_proj.weight": np.ascontiguousarray(matrix.T)
                for expert, matrix in enumerate(values)
            }
        else:
            single[f"{inner}{name}"] = values
    save_file(single, places[1] / "model.safetensors")
    cpu = open_available("cpu", threads=1)
    runners = [load(place, cpu, context=64, eager=True) for place in places]
    wanted, found = (runner.step([(0, case.ids()[:9])])["logits"] for runner in runners)
    assert_close(found, wanted, "exact")
    for runner in runners:
        runner.close()
    cpu.close()
