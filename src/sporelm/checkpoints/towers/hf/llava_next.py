"""Hugging Face folders of LLaVA-NeXT (LLaVA 1.6) and Granite Vision."""

from typing import Any, Final

from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.tensor_table import TensorTable
from sporelm.checkpoints.towers.hf.llava import LlavaHf, llava_json, llava_layout, read_llava
from sporelm.checkpoints.towers.open_tower import register_tower
from sporelm.checkpoints.towers.tower_schema import MAX_IMAGE_SIZE
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.models.tower_config import TowerConfig
from sporelm.models.towers.llava_next import NEWLINE, LlavaNextConfig, LlavaNextTower

# Default of transformers' LlavaNextConfig.
PINPOINTS: Final = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))
MAX_PINPOINTS: Final = 256
MAX_TILES: Final = 64  # of one picture


@register_tower
class LlavaNextHf(LlavaHf):
    """`LlavaNextForConditionalGeneration`."""

    architecture = LlavaNextTower
    layout = llava_layout("LlavaNextForConditionalGeneration", "llava_next")
    prefixes = (*LlavaHf.prefixes, *(f"{front}image_newline" for front in ("", "model.", "language_model.model.")))
    optional_prefixes = ("model.", "language_model.model.")
    tensors: TensorTable = {**LlavaHf.tensors, NEWLINE: "image_newline"}

    def config_from_json(self, values: ConfigValues) -> TowerConfig:
        fields = read_llava(values)
        if fields["drops_first_row"] != fields["has_class_row"]:
            strategy = format_value(values.get("vision_feature_select_strategy"))
            allowed = "default" if fields["has_class_row"] else "full"
            raise UnsupportedModel(
                f"{values.where}: vision_feature_select_strategy is not supported for this tower (got {strategy}; "
                f"allowed {allowed})"
            )
        found = values.get("image_grid_pinpoints")
        pinpoints = check_pinpoints(values.where, PINPOINTS if found is None else found, fields["image_size"])
        return self.tower_config(**fields, pinpoints=pinpoints)

    def json_from_config(self, config: TowerConfig) -> dict[str, Any]:
        assert isinstance(config, LlavaNextConfig)
        if not config.has_newline:
            raise UnsupportedModel("vision tower: folders have a row for the ends of lines (got none; allowed one)")
        return {**llava_json(config), "image_grid_pinpoints": [list(pair) for pair in config.pinpoints]}


def check_pinpoints(where: str, found: object, image_size: int) -> tuple[tuple[int, int], ...]:
    """Return a list of sizes, (height, width), each of whole tiles. Raises ModelFileError for anything else."""
    pairs = [tuple(each) for each in found if isinstance(each, list | tuple)] if isinstance(found, list | tuple) else []
    is_list = isinstance(found, list | tuple) and 0 < len(found) == len(pairs) <= MAX_PINPOINTS
    for pair in pairs:
        is_size = len(pair) == 2 and all(type(each) is int and 0 < each <= MAX_IMAGE_SIZE for each in pair)
        if not is_size or any(each % image_size for each in pair) or pair[0] * pair[1] > MAX_TILES * image_size**2:
            raise ModelFileError(
                f"{where}: image_grid_pinpoints has {format_value(list(pair))}; it must be a height and a width in "
                f"pixels, multiples of {image_size}, of at most {MAX_TILES} tiles"
            )
    if not is_list:
        raise ModelFileError(
            f"{where}: image_grid_pinpoints is {format_value(found)}; it must be a list of heights and widths"
        )
    return tuple((int(height), int(width)) for height, width in pairs)
