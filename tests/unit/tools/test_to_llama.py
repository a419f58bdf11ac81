"""to-llama: the scales of MiniCPM in the weights of a Llama model. Compared with numpy."""

from pathlib import Path

import numpy as np
import pytest

from gguf_models import DENSE, META, contents, values, write_model
from sporelm.errors import RequestError
from sporelm.files.gguf import GgufWriter, open_gguf
from sporelm.quant import BF16, F16, FORMATS, Q8_0, quantize_tensor
from sporelm.tools.convert import convert_model
from sporelm.tools.lazy_model import LazyTensor, open_lazy_model
from sporelm.tools.output_file import save_models
from sporelm.tools.steps import parse_steps
from sporelm.tools.steps.cast_tensors import list_cast_targets
from sporelm.tools.steps.to_llama import SCALE_OFFSETS, scale_tensor

SCALES = {"minicpm.embedding_scale": 12.0, "minicpm.residual_scale": 0.3125, "minicpm.logit_scale": 9.0}
MINICPM = {key.replace("llama.", "minicpm."): value for key, value in META.items()} | {
    "general.architecture": "minicpm"
}


def by(steps: str, source: Path) -> Path:
    path = source.parent / "llama.gguf"
    save_models([convert_model(open_lazy_model(source), parse_steps([steps]), path)], force=True)
    return path


def factors(name: str, is_tied: bool, embedding: float, residual: float, logit: float) -> float:
    if name == "token_embd.weight":
        return embedding
    if name == "output_norm.weight":
        return 1 / (logit * embedding) if is_tied else 1 / logit
    return residual if ".attn_output." in name or ".ffn_down." in name else 1.0


@pytest.mark.parametrize("is_tied", [False, True])
def test_the_scales_are_in_the_weights(tmp_path: Path, is_tied: bool) -> None:
    shapes = {name: shape for name, shape in DENSE.items() if not (is_tied and name == "output.weight")}
    source = write_model(tmp_path / "m.gguf", shapes, meta=MINICPM | SCALES)
    before, after = values(source), values(out := by("to-llama", source))
    for name, array in before.items():
        expected = array * np.float32(factors(name, is_tied, *SCALES.values()))
        assert np.array_equal(after[name], expected), name
    with open_gguf(out) as model:
        assert dict(model.kinds) == {key: open_gguf(write_model(tmp_path / "l.gguf")).kinds[key] for key in META}
        assert model.metadata["general.architecture"] == "llama"
        assert model.metadata["llama.block_count"] == 2


def test_defaults_and_scales_that_are_given(tmp_path: Path) -> None:
    source = write_model(tmp_path / "m.gguf", meta=MINICPM)
    before = values(source)
    after = values(by("to-llama", source))
    for name, array in before.items():
        factor = factors(name, False, 12.0, 1.4 / np.sqrt(2), 64 / 256)
        assert np.array_equal(after[name], array * np.float32(factor)), name
    after = values(by("to-llama:embedding_scale=3,logit_scale=2", source))
    assert np.array_equal(after["token_embd.weight"], before["token_embd.weight"] * np.float32(3))
    assert np.array_equal(after["output_norm.weight"], before["output_norm.weight"] / np.float32(2))


def test_a_llama_model_made_minicpm_comes_back(tmp_path: Path) -> None:
    """A Llama model whose weights are divided by the scales is the MiniCPM model of the same logits."""
    shapes = {name: shape for name, shape in DENSE.items() if "attn_q_norm" not in name}
    shapes |= {f"blk.{layer}.attn_output.bias": shapes["output_norm.weight"] for layer in range(2)}
    llama = write_model(
        tmp_path / "l.gguf",
        shapes,
    )
    writer = GgufWriter(tmp_path / "m.gguf")
    for key, value in (MINICPM | SCALES).items():
        writer.add(key, value)
    for name, array in values(llama).items():
        writer.add_tensor(name, array / np.float32(factors(name, False, *SCALES.values())))
    writer.write()
    back = by("to-llama", tmp_path / "m.gguf")
    for name, array in values(llama).items():
        np.testing.assert_allclose(values(back)[name], array, rtol=1e-6)


@pytest.mark.parametrize("name", [name for name in list_cast_targets() if FORMATS[name].values > 1])
def test_quantized_weights_keep_their_integers(name: str) -> None:
    number_format = FORMATS[name]
    source = np.random.default_rng(3).standard_normal((4, 256)).astype(np.float32)
    blocks = quantize_tensor(number_format, source)
    tensor = LazyTensor("x", number_format.ggml_id, (4, 256), lambda start, stop: blocks[start:stop])
    result = scale_tensor(tensor, 0.3125).read(0, len(blocks))
    expected = number_format.dequantize(blocks) * np.float32(0.3125)
    got = number_format.dequantize(np.ascontiguousarray(result))
    if name in SCALE_OFFSETS:
        assert np.abs(got - expected).max() <= 2**-10 * np.abs(expected).max()
        assert (result != blocks).sum() <= len(blocks) * 2 * len(SCALE_OFFSETS[name])
    else:
        assert np.abs(got - expected).max() <= 0.3 * np.abs(expected).max()


@pytest.mark.parametrize("number_format", [F16, Q8_0], ids=lambda it: it.name)
def test_values_that_become_too_large(number_format) -> None:
    blocks = quantize_tensor(number_format, np.full((1, 32), 60_000, np.float32))
    tensor = LazyTensor("x", number_format.ggml_id, (1, 32), lambda start, stop: blocks[start:stop])
    with pytest.raises(RequestError, match=r"'x' times 200000 leaves the range of .*cast to BF16"):
        scale_tensor(tensor, 200_000.0).read(0, len(blocks))
    assert np.isfinite(BF16.dequantize(quantize_tensor(BF16, np.full((1, 1), 1e10, np.float32)))).all()


@pytest.mark.parametrize(
    ("meta", "steps", "match"),
    [
        ({"minicpm.logit_scale": 0.0}, "to-llama", "must be a positive number"),
        ({"minicpm.logit_scale": "x"}, "to-llama", "must be a positive number"),
        ({}, "to-llama:logit_scale=0", "with a positive number"),
        ({}, "to-llama:zoom=2", "takes embedding_scale, residual_scale, logit_scale"),
        ({}, "to-llama:logit_scale=nan", "with a positive number"),
    ],
)
def test_scales_that_are_refused(tmp_path: Path, meta, steps: str, match: str) -> None:
    source = write_model(tmp_path / "m.gguf", meta=MINICPM | meta)
    with pytest.raises(RequestError, match=match):
        by(steps, source)
    assert contents(source)
