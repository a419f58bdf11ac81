"""GGUF files of Granite with windows."""

from dataclasses import replace
from typing import Final

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.expert_keys import gguf_expert_keys
from sporelm.checkpoints.gguf.granite import GRANITE_KEYS, with_default_score_scale
from sporelm.checkpoints.gguf_schema import WINDOW_PATTERN, GgufModel, GgufSchema, MetadataEntry
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, PERMUTED_QK_TENSORS, SHARED_EXPERT_TENSORS, expert_tensors
from sporelm.checkpoints.hybrid_layers import GGUF_ROPE_PATTERN, read_rope_pattern
from sporelm.checkpoints.row_numbers import EXPERT_GATE_UP_ROWS, SHARED_EXPERT_GATE_UP_ROWS
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import StoredAs
from sporelm.checkpoints.transforms import TakeRows
from sporelm.models.architectures.granite_swa import GraniteSWA
from sporelm.models.config import ModelConfig

WINDOW_STEP: Final = 4


def every_fourth_layer(layers: int) -> frozenset[int]:
    """Return the layers without a window in a file that does not list them: the first of each run of four."""
    return frozenset(range(0, layers, WINDOW_STEP))


def without_rope(pattern: list[object]) -> frozenset[int]:
    """Return the layers for which a pattern has 0 or false."""
    return frozenset(layer for layer, mark in enumerate(pattern) if not mark)


@register
class GraniteSwaGguf(GgufSchema):
    """`granite_swa`. llama.cpp's converter fuses gates and up projections into one tensor; llama.cpp also reads
    separate ones of experts."""

    names = ("granite_swa",)
    architecture = GraniteSWA
    keys = gguf_keys(*GRANITE_KEYS, *gguf_expert_keys("count", "used", "shared_ffn", optional=True))
    constants = {"experts.scores": "softmax_of_chosen"}
    tensors = {
        **DECODER_TENSORS,
        **PERMUTED_QK_TENSORS,
        "layers.{}.attn_sinks.weight": "blk.{}.attn_sinks.weight",
        **expert_tensors(),
        **SHARED_EXPERT_TENSORS,
        **{
            f"layers.{{}}.ffn_{name}_exps.weight": (
                StoredAs("blk.{}.ffn_gate_up_exps.weight", TakeRows(rows, axis=1)),
                f"blk.{{}}.ffn_{name}_exps.weight",
            )
            for name, rows in EXPERT_GATE_UP_ROWS.items()
        },
        **{
            f"layers.{{}}.ffn_{name}_shexp.weight": StoredAs("blk.{}.ffn_up_shexp.weight", TakeRows(rows))
            for name, rows in SHARED_EXPERT_GATE_UP_ROWS.items()
        },
    }
    has_window_pattern = True

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return every_fourth_layer(layers)

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        config = with_default_score_scale(super().config_from_metadata(gguf, values), gguf.values)
        pattern = read_rope_pattern(gguf.values, GGUF_ROPE_PATTERN, config.layers)
        return replace(config, nope_layers=without_rope(pattern))

    def extra_metadata(self, config: ModelConfig) -> dict[str, MetadataEntry]:
        """Return the list of windows, which llama.cpp requires, and that of rotary positions if some layers lack
        them."""
        layers = range(config.layers)
        has_windows = [config.window_of(layer) is not None for layer in layers]
        found: dict[str, MetadataEntry] = {f"granite_swa.{WINDOW_PATTERN}": ("[bool]", has_windows)}
        if config.nope_layers:
            has_rope = [layer not in config.nope_layers for layer in layers]
            found[f"granite_swa.{GGUF_ROPE_PATTERN}"] = "[bool]", has_rope
        return found
