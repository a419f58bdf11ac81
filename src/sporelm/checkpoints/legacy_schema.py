"""Schemas made from the `Family` records of families that are not converted yet."""

from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any

from sporelm.checkpoints.config_keys import OPTIONAL, Key
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.family import OPTIONAL as FAMILY_OPTIONAL
from sporelm.checkpoints.family import Family, Field, HfClass
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema, MetadataEntry
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.legacy_tensors import LegacyTensorSchema
from sporelm.checkpoints.supported_models import MODELS
from sporelm.checkpoints.tensor_names import GGUF, HF, form_in
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder


@cache
def family_of(module: str) -> tuple[Family, Any]:
    """Return the record of a family that is not converted, and its model class."""
    from sporelm.models.registry import model_of

    import_module(f"sporelm.models.families.{module}")
    name = next(each.names[0] for each in MODELS if each.module == module)
    model = model_of(name)
    assert issubclass(model, Decoder)  # all encoders are converted
    return model.family, model


class LegacyGgufSchema(LegacyTensorSchema, GgufSchema):
    """The GGUF half of a family's record."""

    def __init__(self, module: str) -> None:
        family, model = family_of(module)
        super().__init__(family, GGUF)
        self.module, self.architecture = module, model
        self.names, self.mixture_name = (self.family.gguf,), self.family.mixture
        self.keys = tuple(_key(each, each.gguf, each.weight) for each in self.family.fields)
        self.constants, self.own_class = self.family.fixed, self.family.own
        self.has_attention, self.allows_partial_rotary = self.family.attends, self.family.partial_rotary
        self.has_window_pattern, self.llama_cpp_has_window = self.family.tells_layers, not self.family.windowless
        self.yarn_truncates, self.has_dense_modules = self.family.yarn_truncates, self.family.dense

    def stored_templates(self, template: str) -> set[str]:
        return {form_in(names, GGUF).name for names in self.family.names if names.ours == template}

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return self.family.full_layers(layers)

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        values = gguf.values.with_values(self.family.regrouped(dict(gguf.values.values)))
        config = super().config_from_metadata(gguf, values)
        config = self.family.finish(config, values, GGUF) if self.family.finish else config
        return self.family.noticed(config, gguf.metadata, gguf.shapes) if self.family.noticed else config

    def extra_metadata(self, config: ModelConfig) -> dict[str, MetadataEntry]:
        return self.family.said(config) if self.family.said else {}

    def find_unsupported(self, config: ModelConfig) -> str:
        return self.family.unsaid(config) if self.family.unsaid else ""


class LegacyHfSchema(LegacyTensorSchema, HfSchema):
    """The Hugging Face half of a family's record, of one of its classes."""

    def __init__(self, module: str, hf_class: HfClass, declared: str = "") -> None:
        family, model = family_of(module)
        super().__init__(family, HF)
        self.declared = declared or hf_class.name
        self.module, self.architecture, self.hf_class = module, model, hf_class
        self.model_type, self.defaults, self.class_keys = hf_class.model_type, hf_class.defaults, dict(hf_class.fields)
        self.key_names, self.inner_key = hf_class.called, hf_class.inner
        self.keys = tuple(_key(each, each.hf) for each in self.family.fields)
        self.constants, self.supported, self.own_class = self.family.fixed, self.family.only, self.family.own
        self.positions_key, self.ffn_widths = self.family.positions, self.family.ffn_widths
        self.has_attention, self.allows_partial_rotary = self.family.attends, self.family.partial_rotary
        self.counts_scaled_positions = self.family.counts_gained
        self.has_window_pattern = self.family.tells_layers

    @property
    def class_name(self) -> str:
        return self.hf_class.name

    def class_for(self, config: ModelConfig) -> HfSchema:
        return LegacyHfSchema(self.module, self.family.class_of(config))

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return self.family.full_layers(layers)

    def normalize(self, values: ConfigValues) -> ConfigValues:
        return values.with_values(self.family.reworded(dict(values.values)))

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        values = self.normalize(values)
        config = replace(super().config_from_json(values, dtype), architecture=self.declared)
        return self.family.finish(config, values, HF) if self.family.finish else config

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        return self.family.words(config) if self.family.words else {}

    def extra_rope_json(self, config: ModelConfig) -> dict[str, Any]:
        return self.family.rotary_words(config) if self.family.rotary_words else {}


def legacy_gguf_schema(module: str) -> LegacyGgufSchema:
    """Return the GGUF schema of a family that is not converted."""
    return LegacyGgufSchema(module)


def legacy_hf_schema(module: str, class_name: str = "") -> LegacyHfSchema:
    """Return the schema of a class of a family that is not converted; of its first class by default."""
    family, _ = family_of(module)
    return LegacyHfSchema(module, family.class_named(class_name), class_name)


def _key(field: Field, key: str, tensor: str = "") -> Key:
    default = OPTIONAL if field.default is FAMILY_OPTIONAL else field.default
    return Key(field.ours, key, field.kind, field.low, field.high, default, field.words, tensor)
