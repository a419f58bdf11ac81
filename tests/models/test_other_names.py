"""Files that call their weights otherwise than most of their family do."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from available import opened
from close import assert_close
from families import CASES, write_case
from hf_folders import tokenizer_json, write_tokenizer
from sporelm.tools.hf.from_hf import from_hf
from sporelm.tools.hf.to_hf import to_hf
from sporelm.tools.lazy import LazyTensor
from sporelm.tools.output import Output, save
from stepping import Stepper

BY_NAME = {case.name: case for case in CASES}


def logits(load: Callable[..., Stepper], *places: Path) -> list[np.ndarray]:
    backend = opened("cpu", threads=1)
    runners = [load(place, backend, context=64, eager=True) for place in places]
    found = [runner.step([(0, list(range(9)))])["logits"] for runner in runners]
    for runner in runners:
        runner.close()
    backend.close()
    return found


def joined(parts: list[LazyTensor], name: str) -> LazyTensor:
    """Tensors of one type, one after the other."""
    blocks = np.concatenate([part.read(0, part.block_count) for part in parts])
    shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
    return replace(parts[0], name=name, shape=shape, read=lambda start, stop: blocks[start:stop])


def test_query_key_and_value_of_phi_2_may_be_one_tensor(tmp_path: Path, load: Callable[..., Stepper]) -> None:
    case = BY_NAME["phi2"]
    place, file = write_case(tmp_path / "model", case), tmp_path / "m.gguf"
    write_tokenizer(place, tokenizer_json(case.model.config.vocab))
    model = from_hf(place).model
    tensors = {tensor.name: tensor for tensor in model.tensors}
    for layer in range(case.model.config.layers):
        for kind in ("weight", "bias"):
            parts = [tensors.pop(f"blk.{layer}.attn_{part}.{kind}") for part in "qkv"]
            tensors[f"blk.{layer}.attn_qkv.{kind}"] = joined(parts, f"blk.{layer}.attn_qkv.{kind}")
    save([Output(file, replace(model, tensors=list(tensors.values())))])
    wanted, found = logits(load, place, file)
    assert_close(found, wanted, "f32")
    assert {tensor.name for tensor in to_hf(file).tensors} == set(case.tensors())


def test_the_output_of_gpt_neox_has_two_names(tmp_path: Path, load: Callable[..., Stepper]) -> None:
    places = [write_case(tmp_path / name, BY_NAME["gptneox"]) for name in ("old", "new")]
    tensors = load_file(places[1] / "model.safetensors")
    tensors["lm_head.weight"] = tensors.pop("embed_out.weight")
    save_file(tensors, places[1] / "model.safetensors")
    assert_close(*logits(load, *places), "exact")
