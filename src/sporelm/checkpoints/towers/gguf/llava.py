"""mmproj files of LLaVA 1.5.

llama.cpp writes them with tools/mtmd/legacy-models/convert_image_encoder_to_gguf.py. Without `feature_layer`, all
layers of the file are computed: the converter leaves out those after the feature layer. (clip.cpp leaves out one more.)
"""

from typing import Any, Final

from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.gguf_schema import GgufModel, MetadataEntry
from sporelm.checkpoints.gguf_tensors import PARTS
from sporelm.checkpoints.tensor_table import StoredAs
from sporelm.checkpoints.towers.hf.llava import MAX_FEATURES
from sporelm.checkpoints.towers.mmproj import VISION, VIT_TENSORS, VitGgufSchema, read_vit_metadata, vit_metadata
from sporelm.checkpoints.towers.open_tower import register_tower
from sporelm.checkpoints.transforms import Unflatten
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.models.tower import Tower
from sporelm.models.tower_config import TowerConfig
from sporelm.models.towers.llava import LlavaTower, LlavaTowerConfig
from sporelm.models.vit_tower import CLASS

FEATURES: Final = f"{VISION}feature_layer"
PROJECTOR: Final = "mlp"


@register_tower
class LlavaGguf(VitGgufSchema):
    """`mlp`."""

    architecture: type[Tower[Any]] = LlavaTower
    projectors = (PROJECTOR,)
    tensors = {
        **VIT_TENSORS,
        CLASS: StoredAs("v.class_embd", Unflatten()),
        **{f"first_norm.{part}": f"v.pre_ln.{part}" for part in PARTS},
        **{f"projector_up.{part}": f"mm.0.{part}" for part in PARTS},
        **{f"projector_down.{part}": f"mm.2.{part}" for part in PARTS},
    }

    def config_from_metadata(self, gguf: GgufModel) -> TowerConfig:
        return self.tower_config(**read_llava_metadata(gguf))

    def metadata_from_config(self, config: TowerConfig) -> dict[str, MetadataEntry]:
        assert isinstance(config, LlavaTowerConfig)
        if config.drops_first_row != config.has_class_row or config.projector_act not in ("gelu", "gelu_tanh"):
            raise UnsupportedModel(
                "vision tower: mmproj files of LLaVA leave out the class embedding's row and have GELU in the projector"
                f" (got {config.projector_act}, {'without' if config.drops_first_row else 'with'} the first row)"
            )
        found = vit_metadata(config, PROJECTOR)
        return {**found, FEATURES: ("[i32]", list(config.features))}


def read_llava_metadata(gguf: GgufModel) -> dict[str, Any]:
    """Return the fields of `LlavaTowerConfig`. Raises ModelFileError for a missing or impossible value."""
    fields = read_vit_metadata(gguf)
    projector = gguf.shapes.get("mm.2.weight", ())
    if len(projector) != 2:
        raise ModelFileError(f"{gguf.where}: mm.2.weight must be a matrix (got shape {format_value(projector)})")
    has_class = "v.class_embd" in gguf.shapes
    features = read_feature_layers(gguf, fields["layers"])
    if fields["activation"] == "gelu_tanh" and has_class:
        fields["activation"] = "gelu"  # OpenCLIP's; the flag does not tell exact from tanh
    return {
        **fields,
        "layers": max(features),
        "features": features,
        "has_class_row": has_class,
        "drops_first_row": has_class,
        "out_width": projector[0],
        "projector_bias": "mm.0.bias" in gguf.shapes,
    }


def read_feature_layers(gguf: GgufModel, layers: int) -> tuple[int, ...]:
    """Return the numbers of the layers, from 1, that the projector reads. Raises ModelFileError for impossible ones."""
    found = gguf.metadata.get(FEATURES)
    if found is None:
        return (layers,)
    found = found.tolist() if hasattr(found, "tolist") else found
    is_list = isinstance(found, list) and 0 < len(found) <= MAX_FEATURES
    if not is_list or not all(type(each) is int and 1 <= each <= layers for each in found):
        raise ModelFileError(
            f"{gguf.where}: {FEATURES} is {format_value(found)}; it must be a list of layers from 1 to {layers}"
        )
    return tuple(found)


def flat_values(gguf: GgufModel, key: str) -> list[Any] | None:
    """Return an array of the metadata as a list; None if there is none."""
    found = ConfigValues(gguf.metadata, gguf.where).get(key)
    if found is None:
        return None
    return list(found.tolist() if hasattr(found, "tolist") else found) if not isinstance(found, str | int) else [found]
