"""GGUF files that hold experts otherwise than llama.cpp's converter does by default; folders made of them are alike."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from available import open_available
from close import assert_close
from families import CASES, write_case
from hf_folders import tokenizer_json, write_tokenizer
from sporelm.files.safetensors import open_safetensors
from sporelm.tools.hf.from_hf import from_hf
from sporelm.tools.hf.save_folder import save_folder
from sporelm.tools.hf.to_hf import to_hf
from sporelm.tools.lazy_model import LazyTensor
from sporelm.tools.output_file import OutputFile, save_models
from stepping import Stepper

BY_NAME = {case.name: case for case in CASES}


def blocks_of(tensor: LazyTensor) -> np.ndarray:
    """uint8 [experts, blocks of each, bytes]."""
    blocks = tensor.read(0, tensor.block_count)
    return np.ascontiguousarray(blocks).reshape(tensor.shape[0], -1, blocks.shape[-1])


def reader(blocks: np.ndarray) -> Callable[[int, int], np.ndarray]:
    return lambda start, stop: blocks[start:stop]


def fused(tensors: dict[str, LazyTensor]) -> dict[str, LazyTensor]:
    """Gates and up parts in one tensor."""
    found = dict(tensors)
    for name in [name for name in tensors if name.endswith("ffn_gate_exps.weight")]:
        gate, up = found.pop(name), found.pop(name.replace("gate", "up"))
        both = np.concatenate([blocks_of(gate), blocks_of(up)], axis=1)
        experts, rows, width = gate.shape
        read = reader(both.reshape(-1, both.shape[-1]))
        merged = name.replace("gate", "gate_up")
        found[merged] = replace(gate, name=merged, shape=(experts, 2 * rows, width), read=read)
    return found


def single(tensors: dict[str, LazyTensor]) -> dict[str, LazyTensor]:
    """A tensor for each expert."""
    found = dict(tensors)
    for name in [name for name in tensors if name.endswith("_exps.weight")]:
        stack = found.pop(name)
        for expert, blocks in enumerate(blocks_of(stack)):
            each = name.replace("_exps.", f".{expert}.")
            found[each] = replace(stack, name=each, shape=stack.shape[1:], read=reader(blocks))
    return found


def of_one_row(tensors: dict[str, LazyTensor]) -> dict[str, LazyTensor]:
    """Vectors as matrices of one row, as folders hold them and llama.cpp's converter leaves them."""
    ends = ("ffn_gate_inp_shexp.weight", "exp_probs_b.bias")
    return {
        name: replace(each, shape=(1, *each.shape)) if name.endswith(ends) else each for name, each in tensors.items()
    }


def of_four_axes(tensors: dict[str, LazyTensor]) -> dict[str, LazyTensor]:
    """Kimi's decays and taps as llama.cpp's converter writes them."""
    axes = {"ssm_a": 2} | {f"ssm_conv1d_{part}.weight": 1 for part in "qkv"}
    return {
        name: replace(each, shape=(*[1] * axes.get(name.split(".", 2)[-1], 0), *each.shape))
        for name, each in tensors.items()
    }


HELD = [("mixtral", single), ("deepseek2", fused), ("qwen3next", fused)]
HELD += [("kimi-linear", of_four_axes)]
HELD += [(name, of_one_row) for name in ("qwen2moe", "qwen35moe", "ernie-moe")]


@pytest.mark.parametrize(("name", "held"), HELD)
def test_experts_held_otherwise(
    name: str,
    held: Callable[[dict[str, LazyTensor]], dict[str, LazyTensor]],
    load: Callable[..., Stepper],
    tmp_path: Path,
) -> None:
    case, cpu = BY_NAME[name], open_available("cpu", threads=1)
    folder = write_case(tmp_path / "model", case)
    write_tokenizer(folder, tokenizer_json(case.model.config.vocab))
    model = from_hf(folder).model
    other = held({tensor.name: tensor for tensor in model.tensors})
    files = tmp_path / "plain.gguf", tmp_path / "other.gguf"
    save_models([OutputFile(files[0], model)])
    save_models([OutputFile(files[1], replace(model, tensors=list(other.values())))])
    runners = [load(path, cpu, context=64, eager=True) for path in files]
    wanted, found = (runner.step([(0, case.ids()[:9])])["logits"] for runner in runners)
    assert_close(found, wanted, "exact")
    save_folder(to_hf(files[1]), tmp_path / "back", shard_bytes=1 << 30)
    with open_safetensors(folder) as first, open_safetensors(tmp_path / "back") as second:
        assert set(first.names) == set(second.names)
        for tensor in first.names:
            assert_close(second.tensor(tensor).dequantize(), first.tensor(tensor).dequantize(), "f32")
    for runner in runners:
        runner.close()
    cpu.close()
