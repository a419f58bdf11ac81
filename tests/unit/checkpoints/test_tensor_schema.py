"""Tables of tensors resolved: alternatives, spellings of names, layers, experts, and tensors that are not read."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from sporelm.checkpoints import config_from_hf
from sporelm.checkpoints.tensor_names import GGUF, HF, Kind
from sporelm.checkpoints.tensor_schema import TEXT_MODEL_PREFIXES, TensorSchema
from sporelm.checkpoints.tensor_table import StoredAs, TensorTable
from sporelm.checkpoints.transforms import AddConstant, Divide, PermuteRotary, Stack, TakeRows, Transpose
from sporelm.models.config import ModelConfig
from sporelm.models.params import Param
from tiny_models import LLAMA

CONFIG = config_from_hf(LLAMA, "config.json")


@dataclass(frozen=True)
class Info:
    """A tensor in a file."""

    shape: tuple[int, ...] = (8, 8)
    type_name: str = "F32"


class Schema(TensorSchema):
    """A table, and what its names may look like."""

    def __init__(self, tensors: TensorTable, kind: Kind = HF, **attributes: Any) -> None:
        self.tensors, self.kind = tensors, kind
        for name, value in attributes.items():
            setattr(self, name, value)


def params(*names: str, shape: tuple[int, ...] = (8, 8)) -> list[Param]:
    return [Param(name, shape) for name in names]


def sources(schema: TensorSchema, *names: str, held: tuple[str, ...] | None = None) -> list[tuple[str, ...]]:
    """The stored tensors of parameters, in a file with these tensors, or where there is none."""
    tensors = None if held is None else {name: Info() for name in held}
    chosen = schema if held is None else schema.for_file(held)
    return [each.sources for each in chosen.resolve(params(*names), CONFIG, tensors).tensors]


def test_layers_and_experts_have_numbers_in_names() -> None:
    schema = Schema({"layers.{}.up.weight": StoredAs("blk.{}.up.{e}.weight", Stack())}, GGUF)
    (mapped,) = schema.resolve([Param("layers.3.up.weight", (2, 8, 8))], CONFIG).tensors
    assert mapped.sources == ("blk.3.up.0.weight", "blk.3.up.1.weight")
    assert mapped.source_shape == (8, 8)
    assert schema.stored_name("layers.3.up.weight", CONFIG) == "blk.3.up.0.weight"


def test_a_parameter_that_the_table_lacks_has_its_own_name() -> None:
    schema = Schema({})
    assert sources(schema, "dense_2.weight") == [("dense_2.weight",)]
    assert schema.stored_name("layers.1.x", CONFIG) == "layers.1.x"


ROW = ("apart.{}.q", StoredAs("whole.{}.qkv", TakeRows(lambda config: np.arange(8))))


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        (None, "apart.1.q"),  # of files that we write
        ((), "apart.1.q"),
        (("apart.0.q",), "apart.1.q"),
        (("whole.0.qkv",), "whole.1.qkv"),  # in any layer
        (("whole.0.qkv", "apart.0.q"), "apart.1.q"),
    ],
)
def test_the_first_alternative_that_a_file_has_counts(held: tuple[str, ...] | None, expected: str) -> None:
    schema = Schema({"layers.{}.q.weight": ROW}, GGUF)
    assert sources(schema, "layers.1.q.weight", held=held) == [(expected,)]
    assert schema.stored_templates("layers.{}.q.weight") == {"apart.{}.q", "whole.{}.qkv"}


@pytest.mark.parametrize(
    ("attributes", "stored"),
    [
        ({}, "model.layers.1.norm.LayerNorm.weight"),
        ({}, "model.layers.1.norm.LayerNorm.gamma"),
        ({"name_prefix": "model."}, "layers.1.norm.LayerNorm.weight"),
        ({"name_prefix": "model."}, "layers.1.norm.LayerNorm.gamma"),
        ({"optional_prefixes": ("bert.",)}, "bert.model.layers.1.norm.LayerNorm.weight"),
        ({"optional_prefixes": ("bert.",), "name_prefix": "model."}, "bert.layers.1.norm.LayerNorm.gamma"),
        ({"resaved_names": ((".norm.", ".before."),)}, "model.layers.1.before.LayerNorm.weight"),
        ({"prefix_variants": TEXT_MODEL_PREFIXES}, "model.language_model.layers.1.norm.LayerNorm.weight"),
        ({"prefix_variants": TEXT_MODEL_PREFIXES}, "language_model.model.layers.1.norm.LayerNorm.weight"),
    ],
)
def test_folders_spell_names_otherwise(attributes: dict[str, Any], stored: str) -> None:
    table: TensorTable = {"layers.{}.norm.weight": "model.layers.{}.norm.LayerNorm.weight"}
    schema = Schema(table, **attributes)
    assert sources(schema, "layers.1.norm.weight", held=(stored, "other")) == [(stored,)]
    assert schema.stored_name("layers.1.norm.weight", CONFIG, (stored,)) == stored
    assert sources(schema, "layers.1.norm.weight") == [("model.layers.1.norm.LayerNorm.weight",)]
    assert sources(Schema(table, GGUF, **attributes), "layers.1.norm.weight", held=("x",)) == [
        ("model.layers.1.norm.LayerNorm.weight",)
    ]


def test_a_schema_for_a_file_is_another_one() -> None:
    schema = Schema({"layers.{}.q.weight": ROW}, GGUF)
    assert sources(schema, "layers.1.q.weight", held=("whole.0.qkv",)) == [("whole.1.qkv",)]
    assert sources(schema, "layers.1.q.weight") == [("apart.1.q",)]
    assert schema.with_attributes(has_mtp_layers=True).has_mtp_layers
    assert not schema.has_mtp_layers


def test_transforms_see_the_configuration_of_their_layer() -> None:
    class Growing(Schema):
        def layer_config(self, config: ModelConfig, layer: int) -> ModelConfig:
            return replace(config, ffn=config.ffn * (layer + 1))

    rows = TakeRows(lambda config: np.arange(config.ffn))
    schema = Growing({"layers.{}.up.weight": StoredAs("up.{}", rows)}, GGUF)
    mapping = schema.resolve(params("layers.0.up.weight", "layers.2.up.weight"), CONFIG)
    counts = [len(each.transforms[0].index) for each in mapping.tensors]  # type: ignore[attr-defined]
    assert counts == [CONFIG.ffn, 3 * CONFIG.ffn]


def test_transforms_that_depend_on_the_file_are_bound_to_it() -> None:
    schema = Schema({"up.weight": StoredAs("up", Transpose("keep"))}, GGUF)
    param = [Param("up.weight", (2, 8, 32))]
    for tensors, expected in (
        (None, (2, 32, 8)),
        ({"up": Info((2, 32, 8), "F16")}, (2, 32, 8)),
        ({"up": Info((2, 8, 32), "MXFP4")}, (2, 8, 32)),
    ):
        assert schema.resolve(param, CONFIG, tensors).source_shapes() == {"up": expected}


def test_the_inverse_has_all_parameters_of_a_tensor() -> None:
    halves = [TakeRows(lambda config, half=half: np.arange(8) * 2 + half) for half in (0, 1)]
    table: TensorTable = {
        "gate.weight": StoredAs("both", halves[0], AddConstant(1.0)),
        "up.weight": StoredAs("both", halves[1]),
        "down.weight": StoredAs("down", Transpose()),
    }
    mapping = Schema(table).resolve(params(*table), CONFIG)
    assert {name: [each.param.name for each in group] for name, group in mapping.by_source.items()} == {
        "both": ["gate.weight", "up.weight"],
        "down": ["down.weight"],
    }
    assert mapping.source_shapes() == {"both": (16, 8), "down": (8, 8)}
    weights = {name: np.full((8, 8), number, np.float32) for number, name in enumerate(table, 1)}
    stored = mapping.save(weights)
    assert stored["both"][:, 0].tolist() == [0.0, 2.0] * 8
    assert not mapping.by_param["gate.weight"].is_plain
    assert mapping.by_param["gate.weight"].changes_values
    assert not mapping.by_param["up.weight"].changes_values


def test_tensors_that_are_not_read() -> None:
    schema = Schema({}, GGUF, ignored_tensors=("mtp.*", "blk.{}.mask"), has_mtp_layers=True)
    names = ["mtp.0.x", "blk.1.mask", "rope_freqs.weight", "blk.1.x", "blk.9.eh_proj.weight", "blk.9.attn_q.weight"]
    known = {"mtp.0.x", "blk.1.mask", "rope_freqs.weight"}
    assert schema.find_ignored(names) == known
    assert schema.find_ignored(names, CONFIG) == known | {"blk.9.eh_proj.weight", "blk.9.attn_q.weight"}
    assert schema.with_attributes(has_mtp_layers=False).find_ignored(names, CONFIG) == known


def test_modules_and_other_folders_have_other_names() -> None:
    table: TensorTable = {
        "layers.{}.q.weight": ("model.layers.{}.mlp.q", "old.{}.q", StoredAs("whole.{}", AddConstant(1.0))),
        "layers.{}.k.weight": StoredAs("model.layers.{}.mlp.k", Divide(lambda config: 2.0), PermuteRotary()),
    }
    schema = Schema(
        table,
        module_names=((".mlp.", ".block."), (".block.", ".ffn.")),
        resaved_names=((".mlp.q", ".mlp.query"),),
        prefix_variants=(("model.", "text."),),
    )
    assert schema.find_other_names(CONFIG) == {
        "old.{}.q": ["model.layers.{}.mlp.q"],
        "text.layers.{}.mlp.q": ["model.layers.{}.mlp.q"],
        "model.layers.{}.ffn.q": ["model.layers.{}.mlp.q"],
        "model.layers.{}.mlp.query": ["model.layers.{}.mlp.q"],
        "text.layers.{}.mlp.k": ["model.layers.{}.mlp.k"],
        "model.layers.{}.ffn.k": ["model.layers.{}.mlp.k"],
    }
