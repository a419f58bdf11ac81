"""from-hf and to-hf: the same logits, the same bytes, llama.cpp's keys, and what cannot be said told or refused."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantized_folders as made_by
from available import open_available
from gguf_models import contents
from hf_folders import stored, tokenizer_json, write_model, write_safetensors, write_tokenizer
from sporelm.checkpoints import open_model
from sporelm.checkpoints.loader import load_parameters
from sporelm.checkpoints.rope_writing import rope_to_hf, to_shortest_float
from sporelm.errors import ModelFileError, ModelNotFound, RequestError, SporeError, UnsupportedModel
from sporelm.files.gguf import open_gguf
from sporelm.files.safetensors import open_safetensors
from sporelm.models import build
from sporelm.models.rope_scaling import RopeScaling
from sporelm.quant import BF16, F16, F32, Q8_0, dequantize_tensor
from sporelm.tools.hf import general_metadata
from sporelm.tools.hf.from_hf import from_hf
from sporelm.tools.hf.save_folder import save_folder
from sporelm.tools.hf.to_hf import to_hf
from sporelm.tools.lazy_model import MetadataEntry
from sporelm.tools.output_file import OutputFile, save_models
from stepping import Stepper
from tiny_models import ROPES, TINY, WIDE, Tiny

LLAMA, MISTRAL = TINY[0], TINY[3]


def converted(folder: Path, **options: Any) -> Path:
    """The GGUF file of a folder, beside it."""
    path = folder.with_suffix(".gguf")
    save_models([OutputFile(path, from_hf(folder, **options).model)])
    return path


def back(path: Path, shard_bytes: int = 1 << 30, **options: Any) -> Path:
    """The folder of a GGUF file, beside it."""
    folder = path.with_name(f"{path.stem}-back")
    save_folder(to_hf(path, **options), folder, shard_bytes=shard_bytes)
    return folder


def logits(path: Path, ids: list[int]) -> np.ndarray:
    backend, source = open_available("reference"), open_model(path)
    model = build(source.config)
    weights = load_parameters(source, model.params(), backend)
    source.close()
    return Stepper(model, weights, backend, context=192, sequences=1, eager=True).logits(ids)


def tensors_of(folder: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    with open_safetensors(folder) as files:
        return {
            name: (info.type_name, info.shape, files.tensor(name).blocks.tobytes())
            for name, info in files.tensors.items()
        }


DIFFERENT = ("rope-dynamic",)  # beyond its first context
EXACT = [
    tiny if tiny.name in ("llama", "mistral-window-5", "rope-llama3") else pytest.param(tiny, marks=pytest.mark.all)
    for tiny in (*TINY, *ROPES)
    if tiny.name not in DIFFERENT
]


@pytest.mark.parametrize("tiny", EXACT, ids=lambda tiny: tiny.name)
def test_logits_are_the_folders_both_ways(tiny: Tiny, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", tiny)
    file = converted(folder)
    ids = tiny.ids()
    wanted = logits(folder, ids)
    # Divisors of frequencies are float32 in GGUF files; everything else is the same number.
    close = {"rtol": 0, "atol": 1e-5 if tiny in ROPES else 0}
    np.testing.assert_allclose(logits(file, ids), wanted, **close)
    np.testing.assert_allclose(logits(back(file), ids), wanted, **close)


@pytest.mark.parametrize("number_format", [F32, F16, BF16], ids=lambda found: found.name)
def test_tensors_come_back_byte_for_byte(number_format: Any, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", MISTRAL, number_format)
    again = back(converted(folder), shard_bytes=40_000)
    assert tensors_of(again) == tensors_of(folder)
    shards = sorted(again.glob("*.safetensors"))
    assert len(shards) > 2
    assert shards[0].name == f"model-00001-of-{len(shards):05d}.safetensors"
    index = json.loads((again / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(len(data) for *_, data in tensors_of(folder).values())
    config = json.loads((again / "config.json").read_text())
    assert (config["architectures"], config["sliding_window"]) == (["MistralForCausalLM"], 5)
    for key in ("hidden_size", "num_key_value_heads", "rms_norm_eps", "vocab_size", "bos_token_id", "eos_token_id"):
        assert config[key] == MISTRAL.config[key], key
    assert converted_bytes(again) == converted_bytes(folder)


def converted_bytes(folder: Path) -> dict[str, Any]:
    """The result of a second conversion."""
    path = folder.parent / "again.gguf"
    save_models([OutputFile(path, from_hf(folder).model)], force=True)
    return contents(path)


def test_types(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", WIDE, BF16)
    for name, wanted in (("auto", "BF16"), ("f32", "F32"), ("f16", "F16"), ("q8_0", "Q8_0")):
        found = from_hf(folder, type_name=name)
        assert {tensor.ggml_type.name for tensor in found.model.tensors if len(tensor.shape) > 1} == {wanted}
        assert {tensor.ggml_type.name for tensor in found.model.tensors if len(tensor.shape) == 1} == {"F32"}
        assert found.model.value("general.file_type") == {"BF16": 32, "F32": 0, "F16": 1, "Q8_0": 7}[wanted]
    narrow = from_hf(write_model(tmp_path / "narrow", LLAMA), type_name="q8_0")
    assert {tensor.ggml_type.name for tensor in narrow.model.tensors} == {"F32", "F16"}
    assert "14 tensors: written as F16, because rows of 48 values are not whole blocks of Q8_0" in narrow.notes
    doubles = {name: ("F64", array.shape, array.astype("<f8").tobytes()) for name, array in WIDE.weights().items()}
    write_safetensors(folder / "model.safetensors", doubles)
    assert any("F64 is written as F32" in note for note in from_hf(folder).notes)
    assert from_hf(folder, type_name="f32").notes == ()


def test_the_order_of_rotary_rows_is_noted(tmp_path: Path) -> None:
    """Of models whose query and key rows are permuted; the step permute-qk then refuses to permute them again."""
    assert from_hf(write_model(tmp_path / "llama", LLAMA)).model.value("sporelm.qk_order") == "adjacent"
    config: dict[str, Any] = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 8}
    norms = {
        f"model.layers.{layer}.self_attn.{part}_norm.weight": np.ones(8, np.float32)
        for layer in range(2)
        for part in ("q", "k")
    }
    folder = write_model(tmp_path / "qwen3", LLAMA, change=norms, **config)
    assert from_hf(folder).model.value("sporelm.qk_order") is None


def test_quantized_weights_become_their_values(tmp_path: Path) -> None:
    file = converted(write_model(tmp_path / "model", WIDE), type_name="q8_0")
    name = "blk.0.ffn_down.weight"
    with open_gguf(file) as model:
        values = model.tensor(name).dequantize()
    made = tensors_of(back(file))
    assert {dtype for dtype, *_ in made.values()} == {"F32"}
    assert made["model.layers.0.mlp.down_proj.weight"][2] == values.tobytes()
    halves = tensors_of(back(file.rename(tmp_path / "half.gguf"), dtype="bf16"))
    assert {dtype for dtype, *_ in halves.values()} == {"BF16"}


def test_a_value_beyond_f16_is_refused(tmp_path: Path) -> None:
    large = np.full((88, 48), 1e6, np.float32)
    folder = write_model(tmp_path / "model", LLAMA, BF16, {"model.layers.1.mlp.up_proj.weight": large})
    with pytest.raises(RequestError, match=r"blk\.1\.ffn_up\.weight.*too large for F16"):
        converted(folder, type_name="f16")
    assert not list(tmp_path.glob("*.gguf*"))
    assert not list(tmp_path.glob(".*"))


def test_keys_are_those_of_llama_cpp(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "my-model", MISTRAL, rope_theta=5e5)
    (folder / "README.md").write_text(
        "---\nlicense: mit\ntags:\n- a\n- b c\nlanguage: [en, 'no']\nx:\n  y: 1\n---\n# Hi"
    )
    (folder / "generation_config.json").write_text('{"temperature": 0.6, "top_k": 30, "eos_token_id": [2, 5, 6, 7]}')
    found = from_hf(folder)
    meta = {key: (entry.kind, entry.value) for key, entry in found.model.metadata.items()}
    assert meta["general.name"] == ("str", "my-model")
    assert meta["general.license"] == ("str", "mit")
    assert meta["general.tags"] == ("[str]", ["a", "b c"])
    assert meta["general.languages"] == ("[str]", ["en", "no"])
    assert meta["general.sampling.top_k"] == ("i32", 30)
    assert meta["llama.rope.freq_base"] == ("f32", 5e5)
    assert meta["llama.attention.sliding_window"] == ("u32", 5)
    assert meta["llama.attention.layer_norm_rms_epsilon"] == ("f32", 1e-5)
    assert meta["llama.vocab_size"] == ("u32", 131)
    assert meta["llama.attention.head_count_kv"] == ("u32", 2)
    assert meta["tokenizer.ggml.pre"] == ("str", "gpt-2")
    assert meta["tokenizer.ggml.eot_token_id"] == ("u32", 5)
    assert any("more tokens end a turn" in note for note in found.notes)
    assert any("sliding window" in note for note in found.notes)
    again = to_hf(converted(folder)).texts
    assert json.loads(again["generation_config.json"]) == {
        "bos_token_id": 1, "eos_token_id": [2, 5, 6], "pad_token_id": None,
        "do_sample": True, "temperature": 0.6, "top_k": 30,
    }  # fmt: skip
    assert again["README.md"] == "---\nlicense: mit\ntags:\n- a\n- b c\nlanguage:\n- en\n- 'no'\n---\n"


@pytest.mark.parametrize(
    ("values", "label"), [(134_515_008, "135M"), (1_100_048_384, "1.1B"), (656_000, "656K"), (70_553_706_496, "71B")]
)
def test_size_labels(values: int, label: str) -> None:
    assert general_metadata.format_size_label(values) == label


def test_rope_scaling_comes_back_in_its_own_words(tmp_path: Path) -> None:
    kept = ("linear", "yarn", "yarn-attention", "llama3", "longrope")
    for tiny in ROPES:
        folder = write_model(tmp_path / tiny.name, tiny)
        found = from_hf(folder)
        scaling = json.loads(to_hf(converted(folder)).texts["config.json"])["rope_scaling"]
        name, wanted = tiny.name.removeprefix("rope-"), tiny.config["rope_scaling"]
        if name in kept:
            for key in set(wanted) - {"type", "rope_type"}:
                assert scaling[key] == pytest.approx(wanted[key], rel=1e-6), key
        elif name == "dynamic":
            assert scaling is None
            assert any("dynamic rope scaling is dropped" in note for note in found.notes)
        else:
            assert scaling["rope_type"] == "longrope"


@pytest.mark.parametrize(("factor", "low", "high"), [(8.0, 1.0, 4.0), (32.0, 1.0, 4.0), (16.0, 2.0, 6.5)])
def test_llama3_factors_are_recognised(tmp_path: Path, factor: float, low: float, high: float) -> None:
    """Files say nothing but the divisors of the frequencies."""
    source = open_model(write_model(tmp_path / "model", LLAMA))
    source.close()
    rates = 500000.0 ** (-np.arange(0, 128, 2) / 128)
    kept = np.clip((8192 * rates / (2 * np.pi) - low) / (high - low), 0, 1)
    divisors = tuple((1 / (kept + (1 - kept) / factor)).astype(np.float32).tolist())
    config = replace(
        source.config, head_dim=128, rotary=128, rope_theta=5e5, rope_scaling=RopeScaling(divisors=divisors)
    )
    assert rope_to_hf(config, None)["rope_scaling"] == {
        "rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    odd = replace(config, rope_scaling=RopeScaling(divisors=(*divisors[:-1], 3.0)))
    assert rope_to_hf(odd, None)["rope_scaling"]["rope_type"] == "longrope"


def test_numbers_are_short() -> None:
    assert [to_shortest_float(float(np.float32(value))) for value in (1e-5, 1e-6, 10000.0, 0.1)] == [
        1e-5,
        1e-6,
        10000.0,
        0.1,
    ]


def no_tensor(folder: Path) -> None:
    weights = LLAMA.weights()
    del weights["model.layers.0.mlp.up_proj.weight"]
    write_safetensors(
        folder / "model.safetensors",
        {name: ("F32", array.shape, stored(array, F32)) for name, array in weights.items()},
    )


def set_config(**values: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | values))

    return change


def replaced(name: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(text) and None


def unknown_cut(folder: Path) -> None:
    spec = tokenizer_json(
        131, {"type": "Split", "pattern": {"Regex": "[ae]|."}, "behavior": "Isolated", "invert": False}
    )
    spec["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [spec["pre_tokenizer"], spec["decoder"] | {"use_regex": False}],
    }
    write_tokenizer(folder, spec)


WORDS = {"model": {"type": "WordLevel", "vocab": {"a": 0, "<s>": 1, "</s>": 2}, "unk_token": "<s>"}}
DAMAGES: dict[str, tuple[Callable[[Path], object], type[SporeError], str]] = {
    "no tensor": (no_tensor, ModelFileError, "lacks 1 of its 21 tensors: model.layers.0.mlp.up_proj.weight"),
    "architecture": (
        set_config(architectures=["NoSuchForCausalLM"]), UnsupportedModel, r"config\.json: architecture 'NoSuch.*lists"
    ),
    "no config": (lambda folder: (folder / "config.json").unlink(), ModelNotFound, "does not exist"),
    "config is a list": (replaced("config.json", "[1]"), ModelFileError, "must hold a JSON object"),
    "deep config": (replaced("config.json", "[" * 100_000), ModelFileError, "not readable JSON"),
    "shape": (set_config(hidden_size=96, intermediate_size=88), ModelFileError, "it must be"),
    "vocabulary": (set_config(vocab_size=100), ModelFileError, "it must be"),
    "layers": (set_config(num_hidden_layers=1), ModelFileError, "does not have"),
    "mixed windows": (
        set_config(
            architectures=["MistralForCausalLM"], sliding_window=8, layer_types=["full_attention", "sliding_attention"]
        ),
        UnsupportedModel,
        "model: some of its layers have a window .*which a GGUF file of 'llama' cannot say; run the folder as it is",
    ),
    "quantization": (
        set_config(quantization_config={"quant_method": "no-such"}), UnsupportedModel, "no-such"
    ),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), ModelNotFound, "no tokenizer"),
    "tokenizer of words": (
        replaced("tokenizer.json", json.dumps(WORDS)),
        UnsupportedModel,
        "WordLevel",
    ),
    "tokenizer is cut": (replaced("tokenizer.json", '{"model": {'), ModelFileError, "not JSON"),
    "unknown cut": (unknown_cut, UnsupportedModel, "no value of tokenizer.ggml.pre matches.*--pre"),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGES.values(), ids=DAMAGES)
def test_damaged_folders_are_refused(case: Any, tmp_path: Path) -> None:
    damage, error, words = case
    folder = write_model(tmp_path / "model", LLAMA)
    damage(folder)
    with pytest.raises(error, match=words) as caught:
        from_hf(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300, "warm", True], ids=str)
def test_invalid_sampling_numbers_are_left_out(value: Any) -> None:
    keys = ("general.sampling.temp", "general.sampling.top_k", "general.sampling.top_p")
    assert general_metadata.sampling_to_json(dict.fromkeys(keys, value)) == {}
    assert general_metadata.sampling_to_json({"general.sampling.temp": 0.5, "general.sampling.top_k": 2**31}) == {
        "temperature": 0.5
    }


def test_a_file_whose_sampling_is_not_finite_becomes_a_folder(tmp_path: Path) -> None:
    file = converted(write_model(tmp_path / "model", LLAMA))
    found = from_hf(tmp_path / "model").model
    odd = {
        "general.sampling.temp": MetadataEntry("f32", float("nan")),
        "general.sampling.top_k": MetadataEntry("f32", float("inf")),
    }
    odd |= {"general.license": MetadataEntry("str", "\x1b[31m mit")}
    save_models([OutputFile(file, replace(found, metadata=dict(found.metadata) | odd))], force=True)
    texts = to_hf(file).texts
    assert "do_sample" not in json.loads(texts["generation_config.json"])
    assert "\x1b" not in texts["README.md"]


def test_what_stands_in_the_way_of_a_folder(tmp_path: Path) -> None:
    file = converted(write_model(tmp_path / "model", LLAMA))
    found = to_hf(file)
    place = tmp_path / "out"
    place.mkdir()
    (place / "model-00001-of-00002.safetensors").write_bytes(b"x")
    with pytest.raises(RequestError, match="model-00001-of-00002"):
        save_folder(found, place, shard_bytes=1 << 30, force=True)
    (place / "model-00001-of-00002.safetensors").unlink()
    for name in ("quantize_config.json", "spiece.model", "adapter_config.json"):
        (place / name).write_text("{}")
        with pytest.raises(RequestError, match=f"holds {name}, which is read together"):
            save_folder(found, place, shard_bytes=1 << 30, force=True)
        (place / name).unlink()
    (place / "config.json").write_text("old")
    with pytest.raises(RequestError, match="is there already"):
        save_folder(found, place, shard_bytes=1 << 30)
    save_folder(found, place, shard_bytes=1 << 30, force=True)
    assert (place / "config.json").read_text() != "old"
    with pytest.raises(RequestError, match="is a file"):
        save_folder(found, file, shard_bytes=1 << 30)
    with pytest.raises(RequestError, match="there is no folder"):
        save_folder(found, tmp_path / "a" / "b", shard_bytes=1 << 30)
    assert save_folder(found, tmp_path / "dry", shard_bytes=1 << 30, dry_run=True)
    assert not (tmp_path / "dry").exists()


def test_a_failure_leaves_no_folder(tmp_path: Path) -> None:
    file = converted(write_model(tmp_path / "model", LLAMA))
    found = to_hf(file)
    file.write_bytes(file.read_bytes()[:-4096])
    with pytest.raises(ModelFileError, match="changed while it was read"):
        save_folder(found, tmp_path / "new", shard_bytes=20_000)
    assert not (tmp_path / "new").exists()


def test_biases_of_one_side_have_no_class(tmp_path: Path) -> None:
    from tiny_files import write_gguf

    biased = next(tiny for tiny in TINY if tiny.name == "llama-biases")
    change = {f"blk.{layer}.attn_output.bias": None for layer in range(2)}
    path = write_gguf(tmp_path / "m.gguf", biased, change, more={"tokenizer.ggml.model": "none"})
    with pytest.raises(UnsupportedModel, match="no class of transformers"):
        to_hf(path)


def test_the_order_of_rotary_rows_is_in_the_file(tmp_path: Path) -> None:
    """Queries and keys of Llama are adjacent pairs; a file whose rows were moved back is refused."""
    model = from_hf(write_model(tmp_path / "model", WIDE)).model
    assert model.value("sporelm.qk_order") == "adjacent"
    moved = replace(model, metadata={**model.metadata, "sporelm.qk_order": MetadataEntry("str", "half-split")})
    save_models([OutputFile(tmp_path / "moved.gguf", moved)])
    with pytest.raises(RequestError, match="undo step 'permute-qk-rev' with 'permute-qk'"):
        to_hf(tmp_path / "moved.gguf")


def test_q8_0_rounds_as_the_format_does(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", WIDE)
    file = converted(folder, type_name="q8_0")
    with open_gguf(file) as model, open_safetensors(folder) as files:
        stored_values = model.tensor("blk.1.ffn_gate.weight").dequantize()
        original = files.tensor("model.layers.1.mlp.gate_proj.weight").dequantize()
    blocks = stored(original, Q8_0)
    wanted = dequantize_tensor(Q8_0, np.frombuffer(blocks, np.uint8).copy(), original.shape)
    assert np.array_equal(stored_values, wanted)


SCHEMES = {
    "gptq": (made_by.gptq(), {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False}),
    "awq": (made_by.awq(), {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}),
    "fp8": (made_by.fp8(), {"quant_method": "fp8", "activation_scheme": "static"}),
}


@pytest.mark.parametrize("name", ["gptq", *(pytest.param(name, marks=pytest.mark.all) for name in ("awq", "fp8"))])
def test_quantized_folders_are_written_as_their_values(tmp_path: Path, name: str) -> None:
    scheme, settings = SCHEMES[name]
    folder = tmp_path / "model"
    values = made_by.write(folder, WIDE, scheme, settings)
    write_tokenizer(folder, tokenizer_json(131))
    found = from_hf(folder)
    assert "written as F16" in found.notes[-1]
    file = converted(folder, type_name="f32")
    wanted = values["model.layers.1.mlp.down_proj.weight"]
    with open_gguf(file) as model:
        np.testing.assert_allclose(model.tensor("blk.1.ffn_down.weight").dequantize(), wanted, rtol=1e-6, atol=1e-7)
    half = converted(folder.rename(tmp_path / "half"))
    with open_gguf(half) as model:
        tensor = model.tensor("blk.1.ffn_down.weight")
        np.testing.assert_allclose(tensor.dequantize(), wanted, rtol=1e-3, atol=1e-5)
