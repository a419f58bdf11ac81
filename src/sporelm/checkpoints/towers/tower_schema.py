"""The base classes of the schemas of vision towers: in folders of multimodal models, and in mmproj GGUF files.

Keys and names of mmproj files: llama.cpp's tools/mtmd/clip-impl.h and gguf-py's constants.py.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_schema import GgufModel, MetadataEntry
from sporelm.checkpoints.tensor_names import GGUF, HF
from sporelm.checkpoints.tensor_schema import TensorSchema
from sporelm.models.config import MAX_HEADS, MAX_LAYERS, MAX_WIDTH, ModelConfig
from sporelm.models.tower import Tower
from sporelm.models.tower_config import TowerConfig

MAX_IMAGE_SIZE = 1 << 14  # pixels of a side
CLIP = "clip"  # general.architecture of mmproj files
MIN_EPS = 1e-20


class TowerSchema(TensorSchema):
    """The tensors and the configuration of one family's towers. `architecture` is the class of the tower."""

    architecture: type[Tower[Any]]

    def tower_config(self, **values: Any) -> TowerConfig:
        """Return the configuration with the fields that all towers share filled in."""
        heads, width = values["heads"], values["width"]
        shared = {
            "name": self.architecture.name,
            "architecture": self.architecture.name,
            "model": self.architecture.name,
            "kv_heads": heads,
            "head_dim": width // heads,
            "vocab": 1,
            "rope_theta": 0.0,
            "context_length": 1,
            "attention_bias": True,
            "attention_out_bias": True,
            "mlp_bias": True,
        }
        return self.architecture.config_class(**{**shared, **values})


class FolderLayout(NamedTuple):
    """How folders of a multimodal class are written.

    class_name    class of the whole model; that of a variant with another text model is kept
    model_type    model_type of the whole model
    text_prefix   prefix of the text model's tensor names, if it has a class of its own
    tower_names   prefixes of the tower's tensor names: in the schema, and as written
    token_keys    key of config.json -> the token whose id it holds
    is_flat       the text model's keys are at the top level of config.json, not in "text_config"
    """

    class_name: str
    model_type: str
    text_prefix: str
    tower_names: tuple[str, str]
    token_keys: Mapping[str, str]
    is_flat: bool = False


class TowerHfSchema(TowerSchema):
    """The vision part of folders of these classes.

    prefixes   prefixes of the tower's tensor names, in all published spellings
    layout     how folders are written; None: folders can only be read
    """

    kind = HF
    prefixes: tuple[str, ...] = ()
    layout: FolderLayout | None = None

    def config_from_json(self, values: ConfigValues) -> TowerConfig:
        """Return the configuration in a config.json, that of the whole model.

        Raises ModelFileError for a missing or impossible value, UnsupportedModel for an unsupported option.
        """
        raise NotImplementedError

    def json_from_config(self, config: TowerConfig) -> dict[str, Any]:
        """Return the keys of a config.json that describe the tower, "vision_config" among them, for classes with a
        layout. Raises UnsupportedModel for settings that folders cannot express."""
        raise NotImplementedError

    def find_ignored(self, names: Iterable[str], config: ModelConfig | None = None) -> set[str]:
        names = list(names)
        others = {name for name in names if not name.startswith(self.prefixes)}
        return others | super().find_ignored([name for name in names if name not in others], config)


class TowerGgufSchema(TowerSchema):
    """mmproj files.

    projectors   values of `clip.projector_type`; the first is written
    """

    kind = GGUF
    projectors: tuple[str, ...] = ()

    def config_from_metadata(self, gguf: GgufModel) -> TowerConfig:
        """Return the configuration of a file. Raises as `TowerHfSchema.config_from_json`."""
        raise NotImplementedError

    def metadata_from_config(self, config: TowerConfig) -> dict[str, MetadataEntry]:
        """Return the metadata of a file under its full keys."""
        raise NotImplementedError

    def extra_tensors(self, config: TowerConfig) -> dict[str, NDArray[np.float32]]:
        """Return tensors that llama.cpp requires and that follow from the configuration, by stored name. Towers do not
        read them."""
        return {}


def inner_values(values: ConfigValues, key: str) -> ConfigValues:
    """Return the object under a key of a config.json, such as "vision_config"; empty if it is absent."""
    inner = values.get(key)
    return ConfigValues(inner if isinstance(inner, Mapping) else {}, f"{values.where}: {key}")


def read_vit_shape(values: ConfigValues, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the shape of a ViT from a `vision_config` with the usual keys of transformers."""

    def integer(key: str, high: int) -> int:
        return values.integer(key, 1, high, defaults.get(key))

    return {
        "width": integer("hidden_size", MAX_WIDTH),
        "ffn": integer("intermediate_size", MAX_WIDTH),
        "layers": integer("num_hidden_layers", MAX_LAYERS),
        "heads": integer("num_attention_heads", MAX_HEADS),
        "eps": values.number("layer_norm_eps", MIN_EPS, 1.0, defaults.get("layer_norm_eps")),
    }


def patch_kernel(config: TowerConfig) -> tuple[int, ...]:
    """Return the shape of one output's weight in the convolution over patches."""
    return (config.channels, config.patch, config.patch)
