"""Keys and readers of windows, for families that are not converted to schemas yet."""

from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.rope_fields import MAX_CONTEXT
from sporelm.errors import UnsupportedModel

WINDOWED_LAYERS = "attention.sliding_window_pattern"  # in GGUF metadata: of each layer, whether it has a window
BY_LAYER = "per_layer_config"  # of config.json: keys that some layers have in place of the rest, of any class


def window_of(fields: Fields, key: str, default: int | None) -> int | None:
    """Positions seen, by a config.json; null means all of them, absence the default."""
    if key not in fields.values:
        return default
    return fields.integer(key, 1, MAX_CONTEXT) if fields.has(key) else None


def full_layers_of(fields: Fields, layers: int) -> frozenset[int]:
    """The layers that `layer_types` of a config.json leaves without a window; none where it is absent."""
    kinds = fields.values.get("layer_types")
    if kinds is None:
        return frozenset()
    known = ("full_attention", "sliding_attention")
    if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in known for kind in kinds):
        raise UnsupportedModel(f"{fields.where}: layer_types must give one of {known} for each of the {layers} layers")
    return frozenset(index for index, kind in enumerate(kinds) if kind == "full_attention")
