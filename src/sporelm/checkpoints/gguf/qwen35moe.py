"""GGUF files of Qwen3.5 with experts, its text model."""

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.delta_net_keys import ATTENTION_INTERVAL_KEY, DELTA_NET_GGUF_KEYS
from sporelm.checkpoints.expert_keys import gguf_expert_keys
from sporelm.checkpoints.gguf.qwen2moe import SHARED_GATE_TENSORS
from sporelm.checkpoints.gguf.qwen35 import QWEN35_CONSTANTS, QWEN35_TENSORS, Qwen35Gguf
from sporelm.checkpoints.gguf_schema import GgufModel
from sporelm.checkpoints.gguf_tensors import SHARED_EXPERT_TENSORS, expert_tensors
from sporelm.checkpoints.schema_registry import register
from sporelm.models.config import ModelConfig


@register
class Qwen35MoeGguf(Qwen35Gguf):
    """`qwen35moe`. llama.cpp's converter does not write a width of dense feed-forward blocks, since no layer has
    one."""

    names = ("qwen35moe",)
    keys = gguf_keys(
        *DELTA_NET_GGUF_KEYS,
        ATTENTION_INTERVAL_KEY,
        *gguf_expert_keys("count", "used", "ffn", "shared_ffn"),
        Key("ffn", "feed_forward_length", "u32"),
    )
    constants = {**QWEN35_CONSTANTS, "experts.shared_gate": True, "experts.renormalize": True}
    tensors = QWEN35_TENSORS | expert_tensors(has_fused=True) | SHARED_EXPERT_TENSORS | SHARED_GATE_TENSORS

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        values = gguf.values if values is None else values
        expert_width = values.get("expert_feed_forward_length")
        values = values.with_values({"feed_forward_length": expert_width, **values.values})
        return super().config_from_metadata(gguf, values)
