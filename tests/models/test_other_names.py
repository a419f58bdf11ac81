"""Files that call their weights otherwise than most of their family do."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from available import open_available
from close import assert_close
from families import CASES, write_case
from hf_folders import tokenizer_json, write_tokenizer
from sporelm.checkpoints import open_model
from sporelm.errors import UnsupportedModel
from sporelm.tools.hf.from_hf import from_hf
from sporelm.tools.hf.to_hf import to_hf
from sporelm.tools.lazy_model import LazyTensor, MetadataEntry
from sporelm.tools.output_file import OutputFile, save_models
from stepping import Stepper

BY_NAME = {case.name: case for case in CASES}


def logits(load: Callable[..., Stepper], *places: Path) -> list[np.ndarray]:
    backend = open_available("cpu", threads=1)
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
    save_models([OutputFile(file, replace(model, tensors=list(tensors.values())))])
    wanted, found = logits(load, place, file)
    assert_close(found, wanted, "f32")
    assert {tensor.name for tensor in to_hf(file).tensors} == set(case.tensors())


def test_the_output_of_gpt_neox_has_two_names(tmp_path: Path, load: Callable[..., Stepper]) -> None:
    places = [write_case(tmp_path / name, BY_NAME["gptneox"]) for name in ("old", "new")]
    tensors = load_file(places[1] / "model.safetensors")
    tensors["lm_head.weight"] = tensors.pop("embed_out.weight")
    save_file(tensors, places[1] / "model.safetensors")
    assert_close(*logits(load, *places), "exact")


def test_the_embedding_of_mamba_has_two_names(tmp_path: Path, load: Callable[..., Stepper]) -> None:
    places = [write_case(tmp_path / name, BY_NAME["mamba"]) for name in ("old", "new")]
    tensors = load_file(places[0] / "model.safetensors")
    tensors["backbone.embedding.weight"] = tensors.pop("backbone.embeddings.weight")
    save_file(tensors, places[0] / "model.safetensors")
    assert_close(*logits(load, *places), "exact")


@pytest.mark.parametrize(
    ("name", "published", "named"),
    [
        ("flint", ".softmax_offset", ".sinks"),
        ("lfm3", ".self_attn.gate_proj.", ".self_attn.g_proj."),
        ("olmo-hybrid", ".post_attention_layernorm.", ".feedforward_layer_norm."),
    ],
)
def test_tensors_by_the_names_that_transformers_has(
    name: str, published: str, named: str, tmp_path: Path, load: Callable[..., Stepper]
) -> None:
    places = [write_case(tmp_path / place, BY_NAME[name]) for place in ("published", "renamed")]
    tensors = load_file(places[1] / "model.safetensors")
    changed = {name.replace(published, named): values for name, values in tensors.items()}
    assert changed.keys() != tensors.keys()
    save_file(changed, places[1] / "model.safetensors")
    assert_close(*logits(load, *places), "exact")


def test_folders_of_a_x_k2_have_its_makers_names() -> None:
    """transformers reads and writes these; its modules are called `mlp.fc1`, `mlp.fc2` and `q_gate_proj`."""
    layer = "model.layers.0."
    names = {f"{layer}input_layernorm.W_{way}.weight" for way in ("down", "up")}
    assert names | {f"{layer}self_attn.q_b_proj.weight"} <= set(BY_NAME["axk2"].tensors())


@pytest.mark.parametrize(("name", "key"), [("cohere-compass", "rope_theta"), ("lfm2moe", "tie_word_embeddings")])
def test_folders_silent_of_a_number_become_gguf_files(name: str, key: str, tmp_path: Path) -> None:
    case = BY_NAME[name]
    place = write_case(tmp_path, case)
    write_tokenizer(place, tokenizer_json(case.model.config.vocab))
    (place / "config.json").write_text(json.dumps({each: value for each, value in case.config.items() if each != key}))
    assert from_hf(place).model.tensors


def test_dense_layers_of_kimi_linear_as_transformers_5_writes_them(
    tmp_path: Path, load: Callable[..., Stepper]
) -> None:
    places = [write_case(tmp_path / place, BY_NAME["kimi-linear"]) for place in ("published", "written")]
    tensors = load_file(places[1] / "model.safetensors")
    changed = {name.replace(".mlp.", ".block_sparse_moe."): values for name, values in tensors.items()}
    assert changed.keys() != tensors.keys()
    save_file(changed, places[1] / "model.safetensors")
    assert_close(*logits(load, *places), "exact")


def test_folders_of_a_x_k1_have_norms_that_nothing_reads_and_may_have_biases_of_routers(
    tmp_path: Path, load: Callable[..., Stepper]
) -> None:
    case = BY_NAME["axk1"]
    places = [write_case(tmp_path / name, case) for name in ("plain", "published", "biased")]
    spare, bias = np.ones(case.model.config.width, np.float32), np.zeros(8, np.float32)
    tensors = case.tensors() | {"model.layers.0.post_mlp_layernorm.weight": spare}
    for place, values in ((places[1], bias), (places[2], np.arange(8, dtype=np.float32))):
        more = {"model.layers.1.mlp.gate.e_score_correction_bias": values}
        save_file(tensors | more, place / "model.safetensors", metadata={"format": "pt"})
    assert_close(*logits(load, *places[:2]), "exact")
    plain, biased = logits(load, places[0], places[2])
    assert np.abs(plain - biased).max() > 0.1  # other experts are chosen


def test_nemotron_h_has_two_names_and_layers_that_predict_further_ahead(
    tmp_path: Path, load: Callable[..., Stepper]
) -> None:
    case = BY_NAME["nemotron-3-nano"]
    places, files = [write_case(tmp_path / name, case) for name in ("old", "new")], [tmp_path / f for f in ("a", "b")]
    tensors = {name.replace("backbone.", "model."): held for name, held in case.tensors().items()}
    more = {f"mtp.layers.{n}.mixer.{name}.weight": np.ones((2, 2), np.float32) for n, name in enumerate("ab")}
    save_file(tensors | more, places[1] / "model.safetensors", metadata={"format": "pt"})
    write_tokenizer(places[0], tokenizer_json(case.model.config.vocab))
    model = from_hf(places[0]).model
    assert model.metadata["general.architecture"].value == "nemotron_h_moe"
    save_models([OutputFile(files[0], model)])
    own = [tensor for tensor in model.tensors if tensor.name.startswith("blk.3.")]
    further = [replace(tensor, name=tensor.name.replace("blk.3.", "blk.5.")) for tensor in own]
    further.append(replace(own[0], name="blk.5.nextn.enorm.weight"))
    changed = {key: MetadataEntry("u32", count) for key, count in (("block_count", 6), ("nextn_predict_layers", 1))}
    for key in ("attention.head_count_kv", "feed_forward_length"):
        changed[key] = MetadataEntry("[u32]", [*model.metadata[f"nemotron_h_moe.{key}"].value, 2])
    metadata = model.metadata | {f"nemotron_h_moe.{key}": entry for key, entry in changed.items()}
    save_models([OutputFile(files[1], replace(model, metadata=metadata, tensors=[*model.tensors, *further]))])
    found = logits(load, *places, *files)
    assert_close(found[1], found[0], "exact")
    assert_close(found[3], found[2], "exact")
    assert_close(found[2], found[0], "f32")


def test_multipliers_are_put_into_the_weights_of_gguf_files(tmp_path: Path) -> None:
    case = BY_NAME["falcon-h1"]
    place = write_case(tmp_path / "model", case)
    write_tokenizer(place, tokenizer_json(case.model.config.vocab))
    found, half = from_hf(place), from_hf(place, type_name="f16")
    told = "its multipliers are put into the weights, which are written as F32; --type names another"
    assert (told in found.notes, told in half.notes) == (True, False)
    types = {tensor.name: tensor.ggml_type.name for tensor in half.model.tensors}
    assert (types["blk.0.attn_k.weight"], types["blk.0.ffn_norm"]) == ("F16", "F32")
    (keys,) = (tensor for tensor in found.model.tensors if tensor.name == "blk.0.attn_k.weight")
    wanted = case.tensors()["model.layers.0.self_attn.k_proj.weight"] * np.float32(1.3 * 0.6)
    assert_close(keys.read(0, keys.block_count).view("<f4").reshape(wanted.shape), wanted, "f32")


def test_an_output_that_is_the_embedding_has_no_bias(tmp_path: Path) -> None:
    case = BY_NAME["phimoe"]
    place = write_case(tmp_path / "model", replace(case, config=case.config | {"lm_head_bias": True}))
    path = place / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | {"tie_word_embeddings": True}), "utf-8")
    with pytest.raises(UnsupportedModel, match=r"model: an output layer tied to the embedding cannot have a bias"):
        open_model(place)
