"""GGUF files of Qwen1.5-MoE and Qwen2-57B-A14B."""

from typing import Final

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.expert_keys import find_unsupported_routing, gguf_expert_keys
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, SHARED_EXPERT_TENSORS, expert_tensors
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import StoredAs, TensorTable
from sporelm.checkpoints.transforms import Unflatten
from sporelm.models.architectures.llama import Llama
from sporelm.models.config import ModelConfig

# The gate of the shared expert; some files have it as a matrix of one row.
SHARED_GATE_TENSORS: Final[TensorTable] = {
    "layers.{}.ffn_gate_inp_shexp.weight": StoredAs("blk.{}.ffn_gate_inp_shexp.weight", Unflatten(optional=True))
}


@register
class Qwen2MoeGguf(GgufSchema):
    """`qwen2moe`: Qwen2 with a mixture of experts and a gated shared expert (Yang et al. 2024)."""

    names = ("qwen2moe",)
    architecture = Llama
    keys = gguf_keys(*gguf_expert_keys("count", "used", "ffn", "shared_ffn"))
    constants = {"attention_bias": True, "experts.shared_gate": True}
    tensors = DECODER_TENSORS | expert_tensors() | SHARED_EXPERT_TENSORS | SHARED_GATE_TENSORS
    llama_cpp_has_window = False

    def find_unsupported(self, config: ModelConfig) -> str:
        return find_unsupported_routing(config, renormalize=False)
