"""Quantized folders of mixtures, as people publish them: each expert's matrices by themselves, the router whole."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import quantized_folders as made_by
from close import assert_close, assert_near_in_nat
from families import CASES, Case
from hf_folders import tokenizer_json, write_tokenizer
from quantized_folders import Scheme
from sporelm.tools.hf.from_hf import from_hf
from sporelm.tools.output_file import OutputFile, save_models
from stepping import Stepper

WIDTHS = {"hidden_size": 128, "intermediate_size": 128, "moe_intermediate_size": 128, "head_dim": 32, "vocab_size": 96}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_experts": 4}
SCHEMES: dict[str, tuple[Scheme, dict[str, Any]]] = {
    "gptq": (made_by.gptq(group=64), {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": False}),
    "gptq act-order": (
        made_by.gptq(group=64, order="own"),
        {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": True},
    ),
    "awq": (made_by.awq(64), {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm"}),
    "fp8": (
        made_by.fp8((128, 128), suffix="_scale_inv"),
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    ),
}


@pytest.fixture(scope="module")
def case() -> Case:
    found = next(each for each in CASES if each.name == "qwen3moe")
    return replace(found, name="qwen3moe-quantized", config=found.config | WIDTHS | HEADS)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_quantized_experts(scheme: str, case: Case, backend: Any, load: Callable[..., Stepper], tmp_path: Path) -> None:
    make, settings = SCHEMES[scheme]
    random, parts, values = np.random.default_rng(7), dict[str, Any](), dict[str, np.ndarray]()
    for name, tensor in case.tensors().items():
        parts[name] = values[name] = tensor
        if name.endswith("_proj.weight"):
            more, values[name] = make(tensor, random)
            del parts[name]
            parts |= {name.removesuffix(".weight") + end: part for end, part in more.items()}
    for kind in ("parts", "values"):
        (tmp_path / kind).mkdir()
        extra = {"quantization_config": settings} if kind == "parts" else {}
        (tmp_path / kind / "config.json").write_text(json.dumps(case.config | extra))
    made_by.save(tmp_path / "parts" / "model.safetensors", parts)
    save_file(
        {name: np.ascontiguousarray(each, np.float32) for name, each in values.items()},
        tmp_path / "values" / "model.safetensors",
        metadata={"format": "pt"},
    )
    ids = case.ids()[:20]
    expected = load(tmp_path / "values", backend, context=64, eager=False).logits(ids)
    exact = load(tmp_path / "parts", backend, context=64, eager=False, dequantize=True).logits(ids)
    assert_close(exact, expected, "logits")
    assert_near_in_nat(
        load(tmp_path / "parts", backend, context=64, eager=False).logits(ids), expected, 0.01, mean=True
    )
    write_tokenizer(tmp_path / "parts", tokenizer_json(case.model.config.vocab))
    save_models([OutputFile(tmp_path / "m.gguf", from_hf(tmp_path / "parts").model)])
    assert_near_in_nat(
        load(tmp_path / "m.gguf", backend, context=64, eager=False).logits(ids), expected, 0.01, mean=True
    )
