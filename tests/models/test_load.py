"""Loading: GGUF files and folders give the same model; what is missing, surplus, misshapen or damaged is named."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from close import assert_close
from sporelm.backends.reference import ReferenceBackend
from sporelm.checkpoints import loader as loading
from sporelm.checkpoints import open_model
from sporelm.checkpoints.loader import load_parameters
from sporelm.errors import MemoryShortage, ModelFileError, ModelNotFound, UnsupportedModel
from sporelm.models import build
from sporelm.models.rope_scaling import UNSCALED
from sporelm.quant import F32, FORMATS, Q4_1, Q8_0, QuantFormat
from sporelm.quant.stored_tensor import StoredTensor
from stepping import Stepper
from tiny_files import write_folder, write_gguf
from tiny_models import TINY, WIDE, Tiny

BIASED = next(tiny for tiny in TINY if tiny.name == "llama-biases")


def loaded(path: Path, backend: Any = None, **options: Any) -> dict[str, Any]:
    source = open_model(path)
    return load_parameters(source, build(source.config).params(), backend or ReferenceBackend(), **options)


@pytest.mark.parametrize("byte_order", ["little", "big"])
@pytest.mark.parametrize("tiny", [WIDE, BIASED], ids=lambda tiny: tiny.name)
def test_gguf_is_the_folder(
    tiny: Tiny, byte_order: str, backend: Any, tmp_path: Path, folder_of: Callable[[Tiny], Path],
    load: Callable[..., Stepper],
) -> None:  # fmt: skip
    """Bitwise, so the rows of query and key, and their biases, are back in the order of halves."""
    path = write_gguf(tmp_path / "tiny.gguf", tiny, byte_order=byte_order)
    of_gguf = load(path, backend, context=128, eager=False).logits(tiny.ids())
    assert_close(of_gguf, load(folder_of(tiny), backend, context=128, eager=False).logits(tiny.ids()), "exact")


@pytest.mark.parametrize("number_format", [Q8_0, Q4_1])
def test_dequantized_is_the_reference_of_quantized(
    number_format: type[QuantFormat], backend: Any, tmp_path: Path, load: Callable[..., Stepper]
) -> None:
    """`dequantize` loads the very values of the blocks; running on the blocks differs by the activations' rounding."""
    path = write_gguf(tmp_path / "tiny.gguf", WIDE, matrices=number_format)
    source = open_model(path)
    assert source.config.dtype == number_format.name
    held = {name: source.files.tensor(name).dequantize() for name in source.files.names}
    same = write_gguf(tmp_path / "same.gguf", WIDE, held)
    reference = load(path, backend, context=128, eager=False, dequantize=True).logits(WIDE.ids())
    assert_close(reference, load(same, backend, context=128, eager=False).logits(WIDE.ids()), "exact")
    quantized = load(path, backend, context=128, eager=False).logits(WIDE.ids())
    assert 0 < np.abs(quantized - reference).max() < 0.2
    assert divergence(reference, quantized) < 0.002


def divergence(expected: np.ndarray, actual: np.ndarray) -> float:
    """Mean Kullback-Leibler divergence of the next-token distributions, in nats."""

    def log_softmax(logits: np.ndarray) -> np.ndarray:
        shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))

    left, right = log_softmax(expected), log_softmax(actual)
    return float((np.exp(left) * (left - right)).sum(axis=1).mean())


def test_progress_counts_every_byte(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    path = write_gguf(tmp_path / "tiny.gguf", WIDE, matrices=Q8_0)
    loaded(path, progress=lambda phase, done, total: seen.append((phase, done, total)), threads=3)
    stored = sum(info.nbytes for info in open_model(path).files.tensors.values())
    assert seen[-1] == ("load", stored, stored)
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)


MISSING = "model.layers.1.self_attn.k_proj.weight"
NAN, INFINITY = np.float32("nan"), np.float32("inf")


def with_value(name: str, value: np.float32) -> dict[str, np.ndarray]:
    array = WIDE.weights()[name].copy()
    array.reshape(-1)[-1] = value
    return {name: array}


FOLDERS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "missing": ({MISSING: None}, {}, f"lacks 1 of its 21 tensors: {MISSING}"),
    "surplus": (
        {"model.layers.0.self_attn.q_norm.weight": np.ones(8, np.float32)},
        {},
        "holds tensors that LlamaForCausalLM does not have: model.layers.0.self_attn.q_norm.weight; ignoring",
    ),
    "more layers": ({}, {"num_hidden_layers": 3}, "lacks 9 of its 30 tensors: .* and 5 more"),
    "fewer layers": ({}, {"num_hidden_layers": 1}, "holds tensors that .* and 5 more; ignoring"),
    "shape": ({}, {"vocab_size": 132}, r"model.embed_tokens.weight is \[131, 96\]; it must be \[132, 96\]"),
    "heads": ({}, {"num_key_value_heads": 3}, r"is \[32, 96\]; it must be \[48, 96\]"),
    "NaN in a norm": (with_value("model.norm.weight", NAN), {}, "tensor model.norm.weight holds NaN or infinity"),
    "NaN in a matrix": (with_value(MISSING, NAN), {}, f"tensor {MISSING} holds NaN"),
    "infinity": (with_value(MISSING, -INFINITY), {}, f"tensor {MISSING} holds NaN or infinity"),
    "tied embeddings differ": ({}, {"tie_word_embeddings": True}, "lm_head.weight differs from .* Set it to false"),
}


@pytest.mark.parametrize("case", FOLDERS, ids=str)
def test_folder_refused(case: str, tmp_path: Path) -> None:
    change, config, message = FOLDERS[case]
    folder = write_folder(tmp_path / "model", WIDE, change, **config)
    with pytest.raises(ModelFileError, match=message) as caught:
        loaded(folder)
    assert "\n" not in str(caught.value)


def test_equal_tied_embeddings_and_old_angles_are_left_out(tmp_path: Path) -> None:
    embedding = WIDE.weights()["model.embed_tokens.weight"]
    more = {"lm_head.weight": embedding, "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32)}
    weights = loaded(write_folder(tmp_path / "model", WIDE, more, tie_word_embeddings=True))
    assert "output.weight" not in weights


@pytest.mark.parametrize("number_format", [F32, Q8_0, Q4_1])
def test_damaged_scale_is_named(number_format: type[QuantFormat], tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", WIDE, matrices=number_format)
    info = open_model(path).files.tensors["blk.1.ffn_up.weight"]
    data = bytearray(path.read_bytes())
    last = info.offset + info.nbytes - number_format.nbytes  # the last block
    data[last : last + 4] = np.float32("nan").tobytes() if number_format is F32 else np.float16(["inf"] * 2).tobytes()
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match=r"tensor blk.1.ffn_up.weight holds NaN or infinity"):
        loaded(path)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of damaged blocks' values
@pytest.mark.parametrize("name", FORMATS)
def test_what_holds_nan_is_what_is_refused(name: str, tmp_path: Path) -> None:
    """Blocks of random bytes, one by one: words that are not floats must not be taken for damage, nor damage missed."""
    number_format = FORMATS[name]
    blocks = np.random.default_rng(7).integers(0, 256, (400, number_format.nbytes), np.uint8)
    blocks[0] = 0
    source = open_model(write_gguf(tmp_path / "tiny.gguf", WIDE))
    refused = np.zeros(len(blocks), bool)
    for index, block in enumerate(blocks):
        try:
            loading.check_finite(source, StoredTensor("x", number_format, (number_format.values,), block))
        except ModelFileError:
            refused[index] = True
    assert np.array_equal(refused, ~np.isfinite(number_format.dequantize(blocks)).all(axis=1))


def test_rope_factors_are_read(tmp_path: Path) -> None:
    """They are part of the configuration, not parameters; all ones say nothing."""
    ones = write_gguf(tmp_path / "ones.gguf", WIDE, {"rope_freqs.weight": np.ones(8, np.float32)})
    assert loaded(ones).keys() == loaded(write_gguf(tmp_path / "plain.gguf", WIDE)).keys()
    assert open_model(ones).config.rope_scaling == UNSCALED
    path = write_gguf(tmp_path / "scaled.gguf", WIDE, {"rope_freqs.weight": np.linspace(1, 8, 8, dtype=np.float32)})
    assert open_model(path).config.rope_scaling.divisors == tuple(range(1, 9))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.ones(7), "rope_freqs.weight is 7 values; it must be a list of 8 numbers"),
        (np.ones((8, 2)), r"rope_freqs.weight is \[8, 2\]; it must have one value for each rotary frequency"),
        (np.ones(5000), r"rope_freqs.weight is \[5000\]; it must have one value"),
        (np.array([1] * 7 + [0]), "value 7 of rope_freqs.weight is 0.0; it must be a number from"),
        (np.array([-1] + [1] * 7), "value 0 of rope_freqs.weight is -1.0"),
        (np.array([1, np.nan] * 4), "value 1 of rope_freqs.weight is nan"),
        (np.array([1, np.inf] * 4), "value 1 of rope_freqs.weight is inf"),
    ],
    ids=["few", "two axes", "many", "zero", "negative", "NaN", "infinity"],
)
def test_rope_factors_refused(values: np.ndarray, message: str, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", WIDE, {"rope_freqs.weight": np.float32(values)})
    with pytest.raises(ModelFileError, match=message) as caught:
        open_model(path)
    assert "\n" not in str(caught.value)


def test_memory_is_checked_before_loading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", WIDE)
    source = open_model(path)
    params = build(source.config).params()
    backend = ReferenceBackend()
    needed = sum(backend.packed_bytes(F32, param.shape) for param in params)
    monkeypatch.setattr(loading, "available_bytes", lambda: needed)
    assert len(load_parameters(source, params, backend)) == len(params)

    def packed(*_: Any) -> None:
        raise AssertionError("nothing may be packed")

    monkeypatch.setattr(backend, "pack", packed)
    monkeypatch.setattr(loading, "available_bytes", lambda: needed - 1)
    with pytest.raises(MemoryShortage, match=r"tiny.gguf need 0.7 MB of memory, 0.7 MB are available: close other"):
        load_parameters(source, params, backend)


def test_the_memory_of_a_device_is_checked_before_loading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights on a device need not fit into the host's memory; weights that fit there may not fit on the device."""
    source = open_model(write_gguf(tmp_path / "tiny.gguf", WIDE))
    params = build(source.config).params()
    backend = ReferenceBackend()
    needed = sum(backend.packed_bytes(F32, param.shape) for param in params)
    monkeypatch.setattr(loading, "available_bytes", lambda: needed // 2)
    monkeypatch.setattr(backend, "free_bytes", lambda: needed)
    assert len(load_parameters(source, params, backend)) == len(params)
    monkeypatch.setattr(backend, "free_bytes", lambda: needed - 1)
    with pytest.raises(
        MemoryShortage, match=r"tiny.gguf need 0.7 MB of the device's memory, 0.7 MB are available: .*auto"
    ):
        load_parameters(source, params, backend)


def test_values_of_dequantized_tensors_count_as_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer threads where they would not all fit, and a refusal where one does not."""
    source = open_model(write_gguf(tmp_path / "tiny.gguf", WIDE, matrices=Q4_1))
    params = build(source.config).params()
    backend = ReferenceBackend()
    weights = sum(backend.packed_bytes(F32, param.shape) for param in params)
    sizes = sorted((prod(param.shape) * 4 for param in params if len(param.shape) == 2), reverse=True)
    used: list[int] = []

    def pool(workers: int, **options: Any) -> ThreadPoolExecutor:
        used.append(workers)
        return ThreadPoolExecutor(workers, **options)

    monkeypatch.setattr(loading, "ThreadPoolExecutor", pool)
    for count in (3, 2, 1):
        monkeypatch.setattr(loading, "available_bytes", lambda count=count: weights + sum(sizes[:count]))
        load_parameters(source, params, backend, dequantize=True, threads=4)
    assert used == [3, 2, 1]
    monkeypatch.setattr(loading, "available_bytes", lambda: weights + sizes[0] - 1)
    with pytest.raises(MemoryShortage):
        load_parameters(source, params, backend, dequantize=True, threads=4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not readable JSON"),
        ("[1, 2]", "must hold a JSON object, it holds a list"),
        ("[" * 100_000, "is not readable JSON"),
        ('{"architectures": ["LlamaForCausalLM"], "hidden_size": 1e999}', "hidden_size is inf"),
        ("\ufeff\udcff", "is not readable JSON"),
    ],
)
def test_bad_config_json(text: str, message: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", WIDE)
    (folder / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ModelFileError, match=message) as caught:
        open_model(folder)
    assert "\n" not in str(caught.value)


def test_folder_without_config(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"config.json does not exist"):
        open_model(tmp_path)


def test_unknown_architecture_of_a_file(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", WIDE, architectures=["LlamaForCausalLMs"])
    with pytest.raises(UnsupportedModel, match="nearest known: LlamaForCausalLM"):
        build(open_model(folder).config)
