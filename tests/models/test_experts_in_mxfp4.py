"""gpt-oss as it is published: its experts in MXFP4, in parts, beside a folder of the values that these stand for."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from close import assert_close, assert_near_in_nat
from families import CASES, Case
from hf_folders import tokenizer_json, write_tokenizer
from sporelm.files.gguf import open_gguf
from sporelm.quant import MXFP4
from sporelm.quant.packing import split_nibbles
from sporelm.tools.hf.from_hf import from_hf
from sporelm.tools.output_file import OutputFile, save_models
from stepping import Stepper

WIDTHS = {"hidden_size": 64, "intermediate_size": 96}
SETTINGS = {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}}


@pytest.fixture(scope="module")
def case() -> Case:
    found = next(each for each in CASES if each.name == "gpt-oss")
    return replace(found, name="gpt-oss-mxfp4", config=found.config | WIDTHS)


@pytest.fixture(scope="module")
def folders(case: Case, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folder with experts in parts, and one of their values."""
    parts, values = dict[str, np.ndarray](), dict[str, np.ndarray]()
    for name, tensor in case.tensors().items():
        values[name] = parts[name] = tensor
        if name.endswith(("gate_up_proj", "down_proj")):
            matrices = np.ascontiguousarray(tensor.swapaxes(1, 2))  # [experts, out, in]
            blocks = MXFP4.quantize(matrices.reshape(-1, 32))
            values[name] = np.ascontiguousarray(MXFP4.dequantize(blocks).reshape(matrices.shape).swapaxes(1, 2))
            codes = split_nibbles(blocks[:, 1:], 16).astype(np.uint8)
            shape = (*matrices.shape[:2], matrices.shape[2] // 32)
            del parts[name]
            parts[f"{name}_blocks"] = (codes[:, ::2] | codes[:, 1::2] << 4).reshape(*shape, 16)
            parts[f"{name}_scales"] = np.ascontiguousarray(blocks[:, 0]).reshape(shape)
    place = tmp_path_factory.mktemp("mxfp4")
    for kind, tensors, more in (("parts", parts, SETTINGS), ("values", values, {})):
        (place / kind).mkdir()
        (place / kind / "config.json").write_text(json.dumps(case.config | more))
        save_file(tensors, place / kind / "model.safetensors", metadata={"format": "pt"})
        write_tokenizer(place / kind, tokenizer_json(case.model.config.vocab))
    return place / "parts", place / "values"


def test_logits_are_those_of_the_values(
    case: Case, folders: tuple[Path, Path], backend: Any, load: Callable[..., Stepper]
) -> None:
    """Exactly where they are dequantized; nearly, where activations are rounded to int8."""
    ids = case.ids()[:20]
    parts, values = folders
    expected = load(values, backend, context=64, eager=False).logits(ids)
    assert_close(load(parts, backend, context=64, eager=False, dequantize=True).logits(ids), expected, "logits")
    assert_near_in_nat(load(parts, backend, context=64, eager=False).logits(ids), expected, 0.01, mean=True)


def test_a_gguf_file_keeps_the_blocks(
    case: Case, folders: tuple[Path, Path], backend: Any, load: Callable[..., Stepper], tmp_path: Path
) -> None:
    file, ids = tmp_path / "m.gguf", case.ids()[:20]
    save_models([OutputFile(file, from_hf(folders[0]).model)])
    with open_gguf(file) as gguf:
        types = {name: info.type_name for name, info in gguf.tensors.items() if "_exps" in name}
    assert {kind for name, kind in types.items() if name.endswith("weight")} == {"MXFP4"}
    assert {kind for name, kind in types.items() if name.endswith("bias")} == {"F32"}
    expected, found = (load(path, backend, context=64, eager=False).logits(ids) for path in (folders[0], file))
    assert_close(found, expected, "f32")  # numbers of the metadata are float32
