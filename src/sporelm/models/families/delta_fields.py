"""What families that are not converted yet share with gated delta nets."""

from typing import Any

from sporelm.checkpoints.tensor_names import Names, Stored, Table
from sporelm.models.config import ModelConfig

MOST_TAPS = 64
KINDS = ("linear_attention", "full_attention")
RECURRENT = "attention.recurrent_layers"


def taps_apart(net: str) -> Table:
    """Names of the taps of delta nets whose queries, keys and values are convolved apart."""
    held: dict[str, Any] = {"transposed": True, "between": True}
    return tuple(
        Names(
            f"layers.{{}}.delta_{part}_conv.weight",
            Stored(f"blk.{{}}.ssm_conv1d_{part}.weight", **held),
            Stored(f"{net}{part}_conv1d.weight", **held),
        )
        for part in "qkv"
    )


def is_regular(config: ModelConfig) -> bool:
    """Whether attention stands at the interval that the configuration says."""
    own = config.own
    return bool(own.attention == frozenset(range(own.interval - 1, config.layers, own.interval)))


def said(config: ModelConfig, gguf: str) -> dict[str, tuple[str, Any]]:
    """More of the metadata of GGUF files of an architecture."""
    recurrent = [layer not in config.own.attention for layer in range(config.layers)]
    return {} if is_regular(config) else {f"{gguf}.{RECURRENT}": ("[bool]", recurrent)}
