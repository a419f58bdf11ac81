"""Gemma 3n: tokens without rows for the layers, ignored tensors, and the values that its files may have."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from available import open_available
from close import assert_close
from families import CASES, write_case
from hf_folders import tokenizer_json, write_tokenizer
from sporelm.checkpoints import config_from_gguf, config_from_hf
from sporelm.errors import ModelError, ModelFileError, UnsupportedModel
from sporelm.files.gguf import open_gguf
from sporelm.models.architectures.gemma3n import Gemma3nConfig
from sporelm.tools.hf.from_hf import from_hf
from sporelm.tools.hf.to_hf import to_hf
from sporelm.tools.output_file import OutputFile, save_models
from stepping import Stepper

CASE = next(case for case in CASES if case.name == "gemma3n")
TABLE = "model.embed_tokens_per_layer.weight"


def logits(load: Callable[..., Stepper], *places: Path) -> list[np.ndarray]:
    """Of all tokens in turn, by the models at these places."""
    cpu, found = open_available("cpu", threads=1), []
    for place in places:
        runner = load(place, cpu, context=192, eager=True)
        found.append(runner.step([(0, list(range(131)))])["logits"])
        runner.close()
    cpu.close()
    return found


def test_tokens_without_rows_for_the_layers_have_the_first_ones(load: Callable[..., Stepper], tmp_path: Path) -> None:
    """transformers gives them the row of token 0. A GGUF file has rows for all, as llama.cpp wants them, and tensors
    for layers that borrow keys and values."""
    places, tensors = [write_case(tmp_path / name, CASE) for name in ("all", "few")], CASE.tensors()
    table = tensors[TABLE].copy()
    table[120:] = table[0]
    save_file(tensors | {TABLE: table}, places[0] / "model.safetensors")
    borrowed = {f"model.layers.6.self_attn.{part}_proj.weight": np.ones((32, 48), np.float32) for part in "kv"}
    save_file(tensors | borrowed | {TABLE: table[:120].copy()}, places[1] / "model.safetensors")
    config = (places[1] / "config.json").read_text()
    (places[1] / "config.json").write_text(config.replace('per_layer_input": 131', 'per_layer_input": 120'))
    write_tokenizer(places[1], tokenizer_json(131))
    file = tmp_path / "m.gguf"
    save_models([OutputFile(file, from_hf(places[1]).model)])
    wanted, found, again = logits(load, *places, file)
    assert_close(found, wanted, "exact")
    assert_close(again, wanted, "f32")
    with open_gguf(file) as held:
        assert held.tensors["per_layer_token_embd.weight"].shape == (131, 84)
        assert held.tensors["altup_proj.weight"].shape == (3, 48, 48)
        for layer in (4, 5, 6):
            assert held.tensors[f"blk.{layer}.attn_k.weight"].shape == (32, 48)
            assert not held.tensor(f"blk.{layer}.attn_v.weight").dequantize().any()
        assert list(held.metadata["gemma3n.activation_sparsity_scale"])[2] == -np.inf
        assert held.metadata["gemma3n.altup.active_idx"] == 0


def test_what_is_left_out_goes_back_into_config_json(tmp_path: Path) -> None:
    place, file = write_case(tmp_path / "model", CASE), tmp_path / "m.gguf"
    write_tokenizer(place, tokenizer_json(131))
    save_models([OutputFile(file, from_hf(place).model)])
    assert f'"activation_sparsity_pattern": [{chr(10)}    0.95,{chr(10)}    0.6,' in to_hf(file).texts["config.json"]


def test_files_that_do_not_say_it_leave_out_most_of_the_first_ten_layers() -> None:
    silent: dict[str, Any] = {"activation_sparsity_pattern": None, "num_hidden_layers": 11, "layer_types": None}
    config = config_from_hf(CASE.config | silent, "config.json")
    assert isinstance(config, Gemma3nConfig)
    assert [config.activation_threshold(layer) is None for layer in range(11)] == [False] * 10 + [True]
    assert config.activation_threshold(0) == pytest.approx(1.6448536)
    widths = config_from_hf(CASE.config | {"intermediate_size": [88] * 7}, "config.json")
    assert widths.ffn == 88


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"altup_active_idx": 1}, UnsupportedModel, "altup_active_idx 1 is not supported; 0 is"),
        ({"altup_correct_scale": False}, UnsupportedModel, "altup_correct_scale False is not supported"),
        ({"altup_num_inputs": 3}, ModelFileError, "altup_num_inputs is 3; it must be 4"),
        ({"num_kv_shared_layers": 5}, ModelFileError, "have no earlier layer of their type"),
        ({"activation_sparsity_pattern": [0.5]}, ModelFileError, "must be a list of 7 numbers"),
        ({"activation_sparsity_pattern": 1.0}, ModelFileError, "it must be a number from 0.0 to 0.999"),
        ({"intermediate_size": [88, 80] * 3 + [88]}, ModelFileError, "intermediate_size is .*; it must be an integer"),
    ],
)
def test_unsupported_values_are_refused(change: dict[str, Any], kind: type[ModelError], message: str) -> None:
    with pytest.raises(kind, match=message):
        config_from_hf(CASE.config | change, "config.json")


def test_gguf_files_that_do_not_say_it_mean_what_llama_cpp_takes(tmp_path: Path) -> None:
    place, file = write_case(tmp_path / "model", CASE), tmp_path / "m.gguf"
    write_tokenizer(place, tokenizer_json(131))
    (place / "config.json").write_text(json.dumps(CASE.config | {"final_logit_softcapping": None}))
    save_models([OutputFile(file, from_hf(place).model)])
    with open_gguf(file) as held:
        metadata, shapes = dict(held.metadata), {name: info.shape for name, info in held.tensors.items()}
    assert config_from_gguf(metadata, shapes, "file").logit_cap is None
    with pytest.raises(UnsupportedModel, match=r"altup\.active_idx is not 0"):
        config_from_gguf(metadata | {"gemma3n.altup.active_idx": 2}, shapes, "file")
    for key in ("final_logit_softcapping", "attention.shared_kv_layers", "activation_sparsity_scale"):
        del metadata[f"gemma3n.{key}"]
    config = config_from_gguf(metadata, shapes, "file")
    assert isinstance(config, Gemma3nConfig)
    assert (config.logit_cap, config.num_kv_shared_layers) == (30.0, 0)
    assert (config.laurel_rank, config.per_layer_vocab) == (12, 131)
    assert {config.activation_threshold(layer) for layer in range(7)} == {None}
    with pytest.raises(ModelFileError, match=r"activation_sparsity_scale is .*; it must be a number for each layer"):
        config_from_gguf(metadata | {"gemma3n.activation_sparsity_scale": [1.0]}, shapes, "file")
