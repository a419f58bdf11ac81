"""How config.json describes each layer of DeciLM and of Llama-Nemotron: key heads alone, or `block_configs`."""

from typing import Any

from sporelm.checkpoints.fields import Fields, shown
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.models.config import MOST_HEADS, MOST_WIDTH, ModelConfig
from sporelm.models.families.layer_shapes import LayerShapes, whole_numbers, with_lists

UNIT = 256  # widths of feed-forward blocks are rounded up to multiples
USUAL = {"num_sink_tokens": None, "sparsify": None, "unshifted_sink": False, "window_length": None, "llama4": None}


def _width(times: float, width: int) -> int:
    return -(-int(2 * times * width / 3) // UNIT) * UNIT


def reworded(values: dict[str, Any]) -> dict[str, Any]:
    """What each layer has, as lists. Raises UnsupportedModel for parts that we do not compute."""
    if (counts := values.get("num_key_value_heads_per_layer")) is not None:
        if not whole_numbers(counts):
            what = f"num_key_value_heads_per_layer is {shown(counts)}"
            raise ModelFileError(f"config.json: {what}; it must be a number for each layer")
        return with_lists(values, {"layer_kv_heads": counts})
    blocks: Any = values.get("block_configs")
    if not isinstance(blocks, list) or not blocks:
        return values
    read = Fields(values, "config.json")
    width, heads = read.integer("hidden_size", 1, MOST_WIDTH), read.integer("num_attention_heads", 1, MOST_HEADS)
    lists: dict[str, list[int]] = {"layer_heads": [], "layer_kv_heads": [], "layer_ffn": []}
    for block in blocks:
        parts = [block.get(part) if isinstance(block, dict) else None for part in ("attention", "ffn")]
        if not all(isinstance(part, dict) for part in parts):
            raise ModelFileError(f"config.json: a layer of block_configs is {shown(block)}; it must have two parts")
        attention, ffn = (Fields({**USUAL, **(part or {})}, "config.json: block_configs") for part in parts)
        for part in (attention, ffn):
            strange = [key for key, usual in USUAL.items() if part.values[key] != usual]
            strange += ["replace_with_linear"] * (part is ffn and part.flag("replace_with_linear", False))
            if strange:
                raise UnsupportedModel(f"{part.where}: {strange[0]} {shown(part.values[strange[0]])} is not supported")
        group = attention.integer("n_heads_in_group", 1, heads) if attention.values.get("n_heads_in_group") else 0
        if group and heads % group:
            what = f"{heads} query heads are no whole groups of {group}"
            raise ModelFileError(f"config.json: block_configs: {what}")
        linear = attention.flag("replace_with_linear", False)
        lists["layer_heads"].append(heads if group or linear else 0)
        lists["layer_kv_heads"].append(heads // group if group else 0)
        times = ffn.number("ffn_mult", 0, MOST_WIDTH) if ffn.values.get("ffn_mult") else 0.0
        lists["layer_ffn"].append(_width(times, width))
    return with_lists(values, lists)


def words(config: ModelConfig) -> dict[str, Any]:
    shapes: LayerShapes = config.own
    if all(shapes.kv_heads) and len({*shapes.ffn, 0}) == 2:
        return {"model_type": "deci", "num_key_value_heads_per_layer": list(shapes.kv_heads)}
    blocks = []
    for heads, kv_heads, ffn in zip(shapes.heads, shapes.kv_heads, shapes.ffn, strict=True):
        group = {"n_heads_in_group": heads // kv_heads if kv_heads else None, "no_op": not heads}
        times = {"ffn_mult": 1.5 * ffn / config.width if ffn else None, "no_op": not ffn}
        linear = {"replace_with_linear": heads > 0 and not kv_heads}
        blocks.append({"attention": group | linear, "ffn": times | {"replace_with_linear": False}})
    return {"block_configs": blocks, "num_key_value_heads": None, "intermediate_size": None}
