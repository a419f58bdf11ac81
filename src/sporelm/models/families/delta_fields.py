"""Names of gated delta nets for families that are not converted yet."""

from typing import Any

from sporelm.checkpoints.tensor_names import Names, Stored, Table

MOST_TAPS = 64
KINDS = ("linear_attention", "full_attention")


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
