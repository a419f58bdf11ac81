"""Quantized folders give the logits of the values they stand for, on every back-end; and transformers' own, live."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import quantized_folders as made_by
from close import assert_close, assert_near_in_nat
from quantized_folders import FOLDERS, FP8, GPTQ, Scheme, write
from sporelm.backends.reference import ReferenceBackend
from sporelm.checkpoints import open_model
from sporelm.checkpoints.loader import load_parameters
from sporelm.models import build, input_specs, trace_model
from stepping import Stepper
from tiny_models import SUPER, WIDE, Tiny


def dense(folder: Path, tiny: Tiny, values: dict[str, np.ndarray]) -> Path:
    """The same model as plain float32."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(tiny.config))
    save_file(values, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("case", FOLDERS)
def test_logits_are_those_of_the_values(case: str, backend: Any, tmp_path: Path, load: Callable[..., Stepper]) -> None:
    """Exactly, once dequantized or multiplied as floats; nearly, where activations are rounded to int8."""
    scheme, settings, tiny = FOLDERS[case]
    values = write(tmp_path / "quantized", tiny, scheme, settings)
    plain = dense(tmp_path / "plain", tiny, values)
    expected = load(plain, backend, context=128, eager=False).logits(tiny.ids())
    reference = load(tmp_path / "quantized", backend, context=128, eager=False, dequantize=True).logits(tiny.ids())
    assert_close(reference, expected, "logits")
    with open_model(tmp_path / "quantized").files as files:
        formats = {files.tensor(name).format for name in values}
    found = load(tmp_path / "quantized", backend, context=128, eager=False).logits(tiny.ids())
    if {form.activation for form in formats} == {"float"}:
        assert_close(found, expected, "logits")
    else:
        assert np.abs(found - expected).max() > 0
        assert_near_in_nat(found, expected, 0.01)


def test_weights_of_one_order_share_the_rows_that_were_put_in_order(tmp_path: Path) -> None:
    """As GPTQ's are, which orders columns by the activations that query, key and value have in common."""
    settings = GPTQ | {"group_size": 32, "desc_act": True}
    write(tmp_path / "quantized", WIDE, made_by.gptq(order="shared"), settings)
    source, backend = open_model(tmp_path / "quantized"), ReferenceBackend()
    model = build(source.config)
    weights = load_parameters(source, model.params(), backend)
    stepper = Stepper(model, weights, backend, context=128, eager=True)
    specs = input_specs(tokens=16, sequences=1, rows=16, max_pages=2)
    graph = trace_model(model.forward, stepper.weights, stepper.caches, specs)
    names = [call.op.name for call in graph.calls]
    assert names.count("select_columns") == 4 * WIDE.config["num_hidden_layers"]
    assert weights["layers.0.attn_q.order"] is weights["layers.0.attn_v.order"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("scheme", "settings"),
    [(made_by.fp8((128, 128), suffix="_scale_inv"), FP8), (made_by.fp8("tensor", suffix="_scale_inv"), FP8)],
    ids=["tiles", "one scale"],
)
def test_logits_are_those_of_transformers(
    scheme: Scheme, settings: dict[str, Any], backend: Any, tmp_path: Path, load: Callable[..., Stepper]
) -> None:
    """Transformers widens FP8 where it has no kernels for it, as on a CPU."""
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'sporelm[live]' compares live")
    pytest.importorskip("accelerate", reason="transformers wants accelerate for FP8: it is not installed")
    transformers = pytest.importorskip(
        "transformers", reason="transformers is not installed: pip install 'sporelm[live]' compares live"
    )
    write(tmp_path / "quantized", SUPER, scheme, settings)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "quantized", dtype=torch.float32, attn_implementation="eager", local_files_only=True
    )
    with torch.no_grad():
        expected = model(torch.tensor([SUPER.ids()])).logits[0].float().numpy()
    found = load(tmp_path / "quantized", backend, context=128, eager=False).logits(SUPER.ids())
    assert_close(found, expected, "logits")
