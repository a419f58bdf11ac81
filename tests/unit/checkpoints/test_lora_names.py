"""Adapters by the names of transformers' modules, where a family's folders have others."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from families import EVERY, Case
from lora_files import peft_tensors, random_pairs, write_peft
from sporelm.checkpoints.lora import TargetModel, make_target_model, read_adapter
from sporelm.errors import ModelFileError, UnsupportedModel

# What folders call weights, and transformers its modules (its conversion_mapping.py).
RENAMED = [
    ("ling3", ".attention.q_proj", ".self_attn.q_proj"),
    ("ling3", ".attention.dense", ".self_attn.o_proj"),  # of attention
    ("ling3", ".attention.o_proj", ".self_attn.o_proj"),  # of delta nets
    ("ling3", ".attention.f_proj", ".self_attn.forget_gate.f_proj"),
    ("lfm3", ".self_attn.gate_proj", ".self_attn.g_proj"),
    ("axk2", ".self_attn.q_b_proj", ".self_attn.q_gate_proj"),
    ("axk2", ".input_layernorm.W_down", ".input_layernorm.mlp.fc1"),
    ("axk2", ".post_attention_layernorm.W_up", ".post_attention_layernorm.mlp.fc2"),
    ("kimi-linear", ".self_attn.f_a_proj", ".self_attn.forget_gate.f_a_proj"),
    ("kimi-linear", ".self_attn.f_b_proj", ".self_attn.forget_gate.f_b_proj"),
    ("kimi-linear", ".block_sparse_moe.shared_experts.up_proj", ".mlp.shared_experts.up_proj"),
    ("kimi-linear", ".mlp.up_proj", ".block_sparse_moe.up_proj"),  # as transformers writes dense layers
    ("nemotron-h", "backbone.layers.0.mixer.in_proj", "model.layers.0.mixer.in_proj"),
    ("nemotron-h", "backbone.layers.0.mixer.in_proj", "layers.0.mixer.in_proj"),  # of a model without its head
    ("laguna", ".mlp.shared_expert.down_proj", ".mlp.shared_experts.down_proj"),
    ("hy-v3", ".mlp.shared_mlp.gate_proj", ".mlp.shared_experts.gate_proj"),
    ("phimoe", ".block_sparse_moe.gate", ".mlp.router"),
    ("step35", "model.layers.1.share_expert.up_proj", "model.language_model.layers.1.mlp.shared_experts.up_proj"),
    ("gpt2", "transformer.h.0.attn.c_attn", "h.0.attn.c_attn"),
]


def base_of(name: str) -> tuple[Case, TargetModel]:
    case = next(case for case in EVERY if case.name == name)
    return case, make_target_model(case.model.params(), case.model.config)


def find_pairs(base: TargetModel, stored: str) -> dict[str, Any]:
    known = {name: np.zeros((matrix.out, matrix.width)) for name, matrix in base.stored_matrices("hf").items()}
    model: Any = SimpleNamespace(weights=lambda: {f"{name}.weight": array for name, array in known.items()})
    return random_pairs(model, 3, (stored,))


@pytest.mark.parametrize(("name", "stored", "module"), RENAMED)
def test_modules_are_known_by_both_names(tmp_path: Path, name: str, stored: str, module: str) -> None:
    _, base = base_of(name)
    pairs = find_pairs(base, stored)
    assert pairs
    renamed = {tensor.replace(stored, module): pair for tensor, pair in pairs.items()}
    assert renamed.keys().isdisjoint(pairs)
    # Scales are told by the names that the adapter has.
    found = [
        read_adapter(write_peft(tmp_path / part, each, 6.0, alpha_pattern={own.removeprefix("."): 12.0}), base)
        for part, own, each in (("stored", stored, pairs), ("module", module, renamed))
    ]
    assert found[0].identity == found[1].identity
    assert found[0].parts.keys() == found[1].parts.keys()


def test_one_matrix_by_both_names_is_damage(tmp_path: Path) -> None:
    _, base = base_of("laguna")
    pairs = find_pairs(base, "layers.1.mlp.shared_expert.down_proj")
    again = {name.replace("shared_expert.", "shared_experts."): pair for name, pair in pairs.items()}
    with pytest.raises(ModelFileError, match="are both the A of one product"):
        read_adapter(write_peft(tmp_path / "a", pairs, tensors=peft_tensors(again)), base)


def test_what_is_refused_is_so_by_both_names(tmp_path: Path) -> None:
    _, base = base_of("ling3")
    for number, block in enumerate(("attention", "self_attn")):
        pairs = {f"model.layers.1.{block}.kv_b_proj.weight": (np.ones((2, 8), "f4"), np.ones((4, 2), "f4"))}
        with pytest.raises(UnsupportedModel, match="used transposed, head by head"):
            read_adapter(write_peft(tmp_path / str(number), pairs), base)


def test_other_names_are_of_no_other_matrix() -> None:
    """No name that a folder's tensor has, or may have, leads to two matrices of one model."""
    for case in EVERY:
        _, base = base_of(case.name)
        known = base.stored_matrices("hf") if base.gguf.names[0] != "falcon-h1" else {}
        for name in known:
            assert [each for each in base.table_names(name) if each in known] == [name], f"{case.name}: {name}"
