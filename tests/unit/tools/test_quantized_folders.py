"""The tools on folders of quantized weights: parts are shown, and checked as the weights that they make up."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantized_folders as made_by
from close import assert_close
from quantized_folders import Scheme, write
from sporelm.checkpoints import open_model
from sporelm.quant import FORMATS, dequantize_tensor
from sporelm.tools.diagnostics import ERROR, NOTE, WARNING
from sporelm.tools.hf.folder_tensors import FolderTensors
from sporelm.tools.model_files import open_model_files
from sporelm.tools.show import describe_files
from sporelm.tools.tensor_values import TensorValues
from sporelm.tools.verify import verify_model
from tiny_models import SUPER, WIDE, Tiny

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32}
INT8 = {"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": {}}
FOLDERS: dict[str, tuple[Scheme, dict[str, Any], Tiny]] = {
    "gptq": (made_by.gptq(), GPTQ, WIDE),
    "fp8": (made_by.fp8(), {"quant_method": "fp8"}, WIDE),
    "w8a8": (made_by.int8(), INT8, WIDE),
    "nf4": (made_by.nf4(), {"quant_method": "bitsandbytes"}, SUPER),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_a_good_folder_has_no_findings_but_notes(case: str, tmp_path: Path) -> None:
    scheme, settings, tiny = FOLDERS[case]
    write(tmp_path / "model", tiny, scheme, settings)
    (tmp_path / "model" / "tokenizer.json").touch()
    report = verify_model(tmp_path / "model")
    assert {finding.level for finding in report.findings} <= {NOTE}, report.findings
    ignored = [finding.message for finding in report.findings if "are ignored" in finding.message]
    told = "14 tensors: scales of activations are ignored: activations are not quantized to eight bits"
    assert ignored == ([told] if case == "w8a8" else [])


def test_a_scheme_that_is_not_supported_is_a_warning(tmp_path: Path) -> None:
    scheme, settings, tiny = FOLDERS["gptq"]
    write(tmp_path / "model", tiny, scheme, settings | {"quant_method": "hqq"})
    report = verify_model(tmp_path / "model")
    found = [finding.message for finding in report.findings if finding.level == WARNING]
    assert any("'spore run' refuses it" in message and "hqq" in message for message in found)
    assert any("no tokenizer.json" in message for message in found)
    assert not report.count(ERROR)


def test_parts_that_do_not_fit_are_told(tmp_path: Path) -> None:
    part = "model.layers.0.mlp.up_proj.g_idx"
    write(tmp_path / "model", WIDE, made_by.gptq(), GPTQ, {part: np.full(96, 3, np.int32)})
    report = verify_model(tmp_path / "model")
    assert [finding.level for finding in report.findings] == [ERROR, WARNING]  # it has no tokenizer
    assert "holds groups 3 to 3; the weight has groups 0 to 2" in report.findings[0].message


def test_missing_weights_are_told(tmp_path: Path) -> None:
    gone = {f"model.layers.0.mlp.up_proj.{part}": None for part in ("qweight", "qzeros", "scales", "g_idx", "bias")}
    write(tmp_path / "model", WIDE, made_by.gptq(), GPTQ, gone)
    (finding,) = [finding for finding in verify_model(tmp_path / "model").findings if finding.level == ERROR]
    assert finding.where == "model.layers.0.mlp.up_proj.weight"


def test_show_has_the_parts(tmp_path: Path) -> None:
    write(tmp_path / "model", WIDE, made_by.fp8(), {"quant_method": "fp8"})
    with open_model_files(tmp_path / "model") as source:
        assert {tensor.type_name for tensor in describe_files(source).tensors} == {"F32", "F8_E4M3"}
        values = TensorValues(source, "model.layers.0.mlp.up_proj.weight").read(0, 96)
    assert np.isfinite(values).all()
    assert np.abs(values).max() > 1  # numbers, without their scale


@pytest.mark.parametrize(
    ("scheme", "type_name"),
    [
        (made_by.gptq(symmetric=True), "Q4_0"),
        (made_by.gptq(symmetric=True, order="own"), "F32"),
        (made_by.gptq(), "F32"),
    ],
    ids=["as they are", "columns in another order", "of no type of GGUF"],
)
def test_weights_to_be_written_have_their_columns_in_place(scheme: Scheme, type_name: str, tmp_path: Path) -> None:
    """In parts that begin and end anywhere."""
    expected = write(tmp_path / "model", WIDE, scheme, GPTQ)
    name = "model.layers.0.mlp.up_proj.weight"
    tensor = FolderTensors(open_model(tmp_path / "model").files).tensor(name)  # type: ignore[arg-type]
    form = FORMATS[type_name]
    assert tensor.type_id == form.ggml_id
    count = expected[name].size // form.values
    blocks = [tensor.read(start, min(start + 37, count)) for start in range(0, count, 37)]
    values = dequantize_tensor(form, np.concatenate(blocks), expected[name].shape)
    assert_close(values, expected[name], "exact")
