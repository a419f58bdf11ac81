"""GGUF files of Phi-3.5-MoE."""

from typing import Final

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.expert_keys import gguf_expert_keys
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, NORM_BIAS_TENSORS, expert_tensors
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.phimoe import PhiMoe

ROUTER_JITTER: Final = (
    0.01  # GGUF files do not contain it. Scores within twice this relative distance of the best are kept
)
PHIMOE_ROUTING: Final = {"experts.scores": "softmax_of_near", "experts.near": 2 * ROUTER_JITTER}


@register
class PhiMoeGguf(GgufSchema):
    """`phimoe`. llama.cpp reads no sliding window."""

    names = ("phimoe",)
    architecture = PhiMoe
    keys = gguf_keys(Key("output_bias", "", "bool", tensor="output.bias"), *gguf_expert_keys("count", "used"))
    constants = PHIMOE_ROUTING
    tensors = {**DECODER_TENSORS, **NORM_BIAS_TENSORS, **expert_tensors(), "output.bias": "output.bias"}
    llama_cpp_has_window = False
