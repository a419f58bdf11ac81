"""Adapters out of files: what PEFT and llama.cpp write, and what neither should."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from math import sqrt
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from families import EVERY
from families.recurrent import CASES
from lora_files import ALL_LINEAR, peft_tensors, random_pairs, write_gguf_adapter, write_peft
from sporelm.checkpoints import config_from_hf
from sporelm.checkpoints.lora import Adapter, adapter, make_target_model, read_adapter
from sporelm.errors import MemoryShortage, ModelError, ModelFileError, ModelNotFound, UnsupportedModel
from sporelm.models import build
from sporelm.quant import F16, Q8_0
from tiny_models import LLAMA, WIDE

MODEL = build(config_from_hf(LLAMA | WIDE.config, "config.json", "F32"))
BASE = make_target_model(MODEL.params(), MODEL.config)
PAIRS = random_pairs(WIDE, 4, ("q_proj", "k_proj", "down_proj"))
FIRST = "base_model.model.model.layers.0.self_attn.q_proj"
NAMES = {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_o"} | {
    f"{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")
}


def ours(name: str) -> str:
    """Our name of a weight by its Hugging Face name."""
    parts = name.split(".")
    return f"layers.{parts[2]}.{NAMES[parts[4]]}"


def assert_is(found: Adapter, pairs: Any, scale_of: Callable[[str], float]) -> None:
    assert found.parts.keys() == {ours(name) for name in pairs}
    for name, (a, b) in pairs.items():
        part = found.parts[ours(name)]
        assert np.array_equal(part.a, a)
        assert np.array_equal(part.b, b.T * np.float32(scale_of(name)))


def test_a_peft_folder_is_read(tmp_path: Path) -> None:
    pairs = random_pairs(WIDE, 4)
    found = read_adapter(write_peft(tmp_path / "a", pairs), BASE)
    assert_is(found, pairs, lambda name: 4.0)
    assert found.rank == 4
    assert found.nbytes == sum(a.nbytes + b.nbytes for a, b in pairs.values())
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        assert read_adapter(tmp_path / "a" / file, BASE).identity == found.identity
    assert read_adapter(tmp_path / "a", BASE, 0.5).identity != found.identity


def test_scales_follow_ranks_and_their_patterns(tmp_path: Path) -> None:
    root = write_peft(tmp_path / "root", PAIRS, 8.0, use_rslora=True, fan_in_fan_out=True)
    assert_is(read_adapter(root, BASE, 2.0), PAIRS, lambda name: 2 * 8 / sqrt(4))
    mixed = PAIRS | random_pairs(WIDE, 2, ("down_proj",)) | random_pairs(WIDE, 3, ("layers.1.self_attn.q_proj",))
    patterns = {
        "rank_pattern": {"down_proj": 2, "^model.layers.1.self_attn.q_proj": 3, "proj": 7},
        "alpha_pattern": {"layers.0.self_attn.q_proj": 5, r"model\.layers\.1\.mlp\.down_proj": 9.0},
    }

    def scale_of(name: str) -> float:
        rank = 2 if "down" in name else 3 if "1.self_attn.q" in name else 4
        return {"model.layers.0.self_attn.q_proj.weight": 5, "model.layers.1.mlp.down_proj.weight": 9}.get(
            name, 16
        ) / rank

    assert_is(read_adapter(write_peft(tmp_path / "mixed", mixed, 16, r=4, **patterns), BASE), mixed, scale_of)


def test_names_without_the_head_and_with_the_adapters_own(tmp_path: Path) -> None:
    """As older versions and adapters of a model without its head have them."""
    renamed = {}
    for name, array in peft_tensors(PAIRS).items():
        renamed[name] = None
        renamed[name.replace("model.model.", "model.").replace(".weight", ".default.weight")] = array
    assert_is(read_adapter(write_peft(tmp_path / "a", PAIRS, tensors=renamed), BASE), PAIRS, lambda name: 4.0)


@pytest.mark.parametrize("number_format", [None, F16, Q8_0])
def test_a_gguf_file_is_the_peft_folder_it_was_made_of(tmp_path: Path, number_format: Any) -> None:
    pairs = random_pairs(WIDE, 32)
    folder = read_adapter(write_peft(tmp_path / "a", pairs, 64.0), BASE, 0.5)
    file = write_gguf_adapter(
        tmp_path / "a.gguf", WIDE, pairs, 64.0, **({"number_format": number_format} if number_format else {})
    )
    found = read_adapter(file, BASE, 0.5)
    assert found.parts.keys() == folder.parts.keys()
    assert (found.identity == folder.identity) == (number_format is None)
    for name, (a, b) in found.parts.items():
        np.testing.assert_allclose(a, folder.parts[name].a, atol=0.01)
        np.testing.assert_allclose(b, folder.parts[name].b, atol=0.02)


def test_a_gguf_without_alpha_is_not_scaled(tmp_path: Path) -> None:
    assert_is(read_adapter(write_gguf_adapter(tmp_path / "a.gguf", WIDE, PAIRS, 0.0), BASE), PAIRS, lambda name: 1.0)


def test_biases_norms_and_the_ends_of_a_model_are_not_matrices_of_layers() -> None:
    assert set(BASE.stored_matrices("hf")) == {name.removesuffix(".weight") for name in random_pairs(WIDE, 1)}
    assert len(BASE.shapes) == 2 * len(ALL_LINEAR)


A, B = f"{FIRST}.lora_A.weight", f"{FIRST}.lora_B.weight"
WIDTH, QUERIES = WIDE.config["hidden_size"], WIDE.config["hidden_size"]


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


@pytest.mark.parametrize(
    ("tensors", "error", "message"),
    [
        ({A: None}, ModelFileError, "lora_B.weight' has no matching A"),
        ({B: None}, ModelFileError, "lora_A.weight' has no matching B"),
        ({A: zeros(4, WIDTH + 1)}, ModelFileError, f"is [4, {WIDTH + 1}]; the model's weight has {WIDTH} columns"),
        ({A: zeros(4, 2, WIDTH)}, ModelFileError, "columns"),
        ({A: zeros(5, WIDTH)}, ModelFileError, "has rank 5, adapter_config.json has 4"),
        ({A: zeros(0, WIDTH)}, ModelFileError, "has rank 0"),
        ({B: zeros(QUERIES, 5)}, ModelFileError, f"must be [{QUERIES}, 4]"),
        ({B: zeros(4)}, ModelFileError, f"must be [{QUERIES}, 4]"),
        ({A: np.full((4, WIDTH), np.nan, np.float32)}, ModelFileError, "lora_A.weight' holds NaN"),
        ({B: np.full((QUERIES, 4), np.inf, np.float32)}, ModelFileError, "lora_B.weight' holds NaN"),
        ({B: np.full((QUERIES, 4), 3e38, np.float32)}, ModelFileError, "is not finite"),
        ({A: np.zeros((4, WIDTH), np.int32)}, UnsupportedModel, "is I32; it must be one of F32, F16, BF16"),
        ({f"{FIRST}.lora_magnitude_vector": zeros(4)}, UnsupportedModel, "DoRA is not supported"),
        ({f"{FIRST}.lora_magnitude_vector.weight": zeros(4)}, UnsupportedModel, "DoRA is not supported"),
        ({"base_model.model.model.embed_tokens.lora_embedding_A": zeros(4, 131)}, UnsupportedModel, "embeddings"),
        ({"base_model.model.lm_head.weight": zeros(131, WIDTH)}, UnsupportedModel, "Merge them into the model"),
        ({f"{FIRST}.lora_B.bias": zeros(QUERIES)}, UnsupportedModel, "Merge them into the model"),
        ({"base_model.model.lm_head.lora_A.weight": zeros(4, WIDTH)}, ModelFileError, "does not match a matrix"),
        ({A.replace("layers.0", "layers.7"): zeros(4, WIDTH)}, ModelFileError, "does not match a matrix"),
        ({A.replace("A.weight", "A.other.weight"): zeros(4, WIDTH)}, UnsupportedModel, "several adapters"),
    ],
)  # fmt: skip
def test_tensors_that_do_not_fit_are_refused(tmp_path: Path, tensors: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=re.escape(message)) as caught:
        read_adapter(write_peft(tmp_path / "a", PAIRS, tensors=tensors), BASE)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        ({"peft_type": "IA3"}, UnsupportedModel, "peft_type 'IA3'"),
        ({"peft_type": None}, ModelFileError, "peft_type is missing"),
        ({"use_dora": True}, UnsupportedModel, "use_dora is set"),
        ({"lora_bias": True}, UnsupportedModel, "lora_bias is set"),
        ({"bias": "lora_only"}, UnsupportedModel, "bias 'lora_only'"),
        ({"modules_to_save": ["lm_head"]}, UnsupportedModel, "modules_to_save is set"),
        ({"trainable_token_indices": [1]}, UnsupportedModel, "trained embeddings"),
        ({"layer_replication": [[0, 1], [0, 1]]}, UnsupportedModel, "repeats layers"),
        ({"alora_invocation_tokens": [1]}, UnsupportedModel, "aLoRA"),
        ({"init_lora_weights": "pissa_niter_16"}, UnsupportedModel, "path_initial_model_for_weight_conversion"),
        ({"init_lora_weights": 1}, UnsupportedModel, "init_lora_weights is 1"),
        ({"use_a_thing_of_tomorrow": True}, UnsupportedModel, "'use_a_thing_of_tomorrow' is unknown"),
        ({"rank_pattern": {"(a+)+": 4}}, UnsupportedModel, "regular expression"),
        ({"rank_pattern": {"q_proj": 0}}, ModelFileError, "q_proj is 0"),
        ({"rank_pattern": [4]}, ModelFileError, "must map"),
        ({"rank_pattern": {"q_proj": 5}}, ModelFileError, "has rank 4, adapter_config.json has 5"),
        ({"r": 1 << 20}, ModelFileError, "from 1 to 1024"),
        ({"lora_alpha": float("nan")}, ModelFileError, "lora_alpha is nan"),
        ({"lora_alpha": "16"}, ModelFileError, "lora_alpha is '16'"),
    ],
)  # fmt: skip
def test_configurations_that_change_more_are_refused(tmp_path: Path, config: Any, error: Any, message: str) -> None:
    folder = write_peft(tmp_path / "a", PAIRS)
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    with pytest.raises(error, match=re.escape(message)) as caught:
        read_adapter(folder, BASE)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("meta", "error", "message"),
    [
        ({"general__type": "model"}, ModelFileError, "is not an adapter: general.type is 'model'"),  # old name: message
        ({"general__type": None}, ModelFileError, "is not an adapter"),  # old name: message
        ({"adapter__type": "control_vector"}, UnsupportedModel, "adapter.type 'control_vector'"),
        ({"general__architecture": "qwen2"}, UnsupportedModel, "is for architecture 'qwen2'"),
        ({"adapter__lora__alpha": None}, ModelFileError, "adapter.lora.alpha is missing"),
        ({"adapter__lora__alpha": float("inf")}, ModelFileError, "adapter.lora.alpha is inf"),
        ({"adapter__alora__invocation_tokens": [1, 2]}, UnsupportedModel, "aLoRA"),
    ],
)  # fmt: skip
def test_gguf_files_that_are_not_such_adapters(tmp_path: Path, meta: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        read_adapter(write_gguf_adapter(tmp_path / "a.gguf", WIDE, PAIRS, **meta), BASE)


def test_gguf_tensors_that_do_not_fit(tmp_path: Path) -> None:
    other = {"model.embed_tokens.weight": (zeros(4, WIDTH), zeros(131, 4))}
    with pytest.raises(ModelFileError, match=r"'token_embd.weight.lora_a' does not match a matrix"):
        read_adapter(write_gguf_adapter(tmp_path / "a.gguf", WIDE, other), BASE)
    with pytest.raises(ModelFileError, match="rank 1025; it must be from 1 to 1024"):
        read_adapter(write_gguf_adapter(tmp_path / "b.gguf", WIDE, random_pairs(WIDE, 1025, ("v_proj",))), BASE)


@pytest.mark.parametrize(("architecture", "fits", "other"), [("falcon-h1", "gguf", "hf"), (None, "hf", "gguf")])
def test_multipliers_in_weights_want_adapters_of_their_kind(architecture: str | None, fits: Any, other: Any) -> None:
    config = next(case.model.config for case in CASES if case.name == "falcon-h1")
    config = replace(config, architecture=architecture or config.architecture)
    model = build(config)
    base = make_target_model(model.params(), config)
    assert "layers.0.attn_q" in [part.name for matrix in base.stored_matrices(fits).values() for part in matrix.parts]
    with pytest.raises(
        UnsupportedModel, match=f"an adapter for a {fits} model must be {fits} too; this one is {other}"
    ):
        base.stored_matrices(other)


def test_missing_files_and_files_without_an_adapter(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.txt").write_text("no adapter")
    pickled = write_peft(tmp_path / "pickled", PAIRS)
    (pickled / "adapter_model.safetensors").rename(pickled / "adapter_model.bin")
    for name, error, message in (
        ("nothing", ModelNotFound, "does not exist"),
        ("empty", ModelNotFound, "adapter_config.json does not exist"),
        ("text.txt", ModelFileError, "Give a folder"),
        ("pickled", UnsupportedModel, "is a pickle"),
    ):
        with pytest.raises(error, match=message):
            read_adapter(tmp_path / name, BASE)
    (pickled / "adapter_model.bin").unlink()
    with pytest.raises(ModelNotFound, match=r"has no adapter_model.safetensors"):
        read_adapter(pickled, BASE)


def test_what_memory_does_not_hold_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_peft(tmp_path / "a", PAIRS)
    monkeypatch.setattr(adapter, "available_bytes", lambda: 1000)
    with pytest.raises(MemoryShortage, match="unload other adapters"):
        read_adapter(folder, BASE)


@pytest.mark.parametrize("seed", range(12))
def test_files_with_changed_bytes_give_an_error_or_numbers(tmp_path: Path, seed: int) -> None:
    """Any damage raises no other exception."""
    random = np.random.default_rng(seed)
    folder, file = write_peft(tmp_path / "a", PAIRS), write_gguf_adapter(tmp_path / "a.gguf", WIDE, PAIRS)
    for path in (folder / "adapter_config.json", folder / "adapter_model.safetensors", file):
        content = bytearray(path.read_bytes())
        for place in random.integers(0, min(len(content), 2000), 4):
            content[place] = random.integers(0, 256)
        whole = path.read_bytes()
        path.write_bytes(content if seed % 3 else content[: len(content) // 2])
        try:
            found = read_adapter(file if path == file else folder, BASE)
            assert all(np.isfinite(part.b).all() for part in found.parts.values())
        except ModelError as error:
            told = str(error)
            if "\n" in told:
                raise AssertionError(told) from None
        path.write_bytes(whole)


def test_joined_matrices_share_what_reads(tmp_path: Path) -> None:
    """Each has its rows of B, and A lies once."""
    case = next(case for case in EVERY if case.name == "phi3")
    base = make_target_model(case.model.params(), case.model.config)
    pairs = random_pairs(SimpleNamespace(weights=case.tensors), 3, ("layers.0.mlp.gate_up_proj",))
    ((a, b),) = pairs.values()
    found = read_adapter(write_peft(tmp_path / "a", pairs, 6.0), base)
    assert found.parts.keys() == {"layers.0.ffn_gate", "layers.0.ffn_up"}
    gate, up = (found.parts[f"layers.0.ffn_{part}"] for part in ("gate", "up"))
    assert gate.a is up.a
    assert np.array_equal(np.concatenate([gate.b, up.b], axis=1), 2 * b.T)
    assert found.nbytes == a.nbytes + b.nbytes


@pytest.mark.parametrize(
    ("name", "module", "message"),
    [
        ("deepseek2", "model.layers.0.self_attn.kv_b_proj", "used transposed, head by head"),
        ("qwen3moe", "model.layers.0.mlp.experts.1.gate_proj", "stacked matrices of experts"),
    ],
)
def test_a_matrix_that_is_not_a_slice_of_rows_is_refused_by_its_kind(
    tmp_path: Path, name: str, module: str, message: str
) -> None:
    case = next(case for case in EVERY if case.name == name)
    base = make_target_model(case.model.params(), case.model.config)
    pairs = {f"{module}.weight": (np.ones((2, 8), np.float32), np.ones((4, 2), np.float32))}
    with pytest.raises(UnsupportedModel, match=message) as caught:
        read_adapter(write_peft(tmp_path / "a", pairs), base)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["hf", "gguf"])
def test_every_matrix_of_layers_is_in_one_tensor_or_refused(kind: Any) -> None:
    for case in EVERY:
        base = make_target_model(case.model.params(), case.model.config)
        if kind == "gguf" and base.gguf.names[0] == "falcon-h1":
            continue  # an adapter of the other kind is refused
        parts = [part.name for matrix in base.stored_matrices(kind).values() for part in matrix.parts]
        assert len(parts) == len(set(parts))
        for name in base.shapes.keys() - set(parts):
            schema = base.gguf if kind == "gguf" else base.hf
            tensor = schema.stored_name(f"{name}.weight", case.model.config)
            assert "stacked" in base.find_conflict(tensor.removesuffix(".weight"), kind), f"{case.name}: {name}"


def test_names_of_a_text_model_that_sees(tmp_path: Path) -> None:
    """Names of PEFT for a multimodal model; only its text model is run."""
    renamed: dict[str, Any] = {}
    for name, array in peft_tensors(PAIRS).items():
        renamed |= {name: None, name.replace("model.model.", "model.model.language_model."): array}
    assert_is(read_adapter(write_peft(tmp_path / "a", PAIRS, tensors=renamed), BASE), PAIRS, lambda name: 4.0)


def test_adapters_add_only_to_products() -> None:
    """Tables that are looked up by row, decays, biases of experts, lists of numbers: it would be left out."""
    for case in EVERY:
        shapes = make_target_model(case.model.params(), case.model.config).shapes
        kept = ("layer_projection", "altup_spread_", "altup_merge_", "embedding_in", "embedding_out", "output_dense")
        strange = [name for name in shapes if not name.startswith(("layers.", *kept))]
        assert case.reads or not strange, f"{case.name}: {strange}"
        assert not any(name.endswith((".bias", ".decay", "_conv", "_norm")) for name in shapes)
