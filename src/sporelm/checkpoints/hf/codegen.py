"""Hugging Face folders of CodeGen 1."""

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf.codegen import NUM_CORES, check_heads
from sporelm.checkpoints.hf.gpt2 import LAYER
from sporelm.checkpoints.hf.gptj import GPTJ_TENSORS, GPTJForCausalLM
from sporelm.checkpoints.row_numbers import rows_of_groups
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import StoredAs
from sporelm.checkpoints.transforms import TakeRows
from sporelm.errors import UnsupportedModel
from sporelm.models.config import ModelConfig


def count_core_rows(config: ModelConfig) -> int:
    """Return the number of query rows of one core."""
    return config.width // NUM_CORES


def rows_of_cores(place: int) -> TakeRows:
    """Return the rows of queries (0), values (1) or keys (2) of all cores; each core stores them one after the
    other."""
    counts = (count_core_rows, count_core_rows, count_core_rows)
    return TakeRows(rows_of_groups([place], lambda config: NUM_CORES, *counts))


@register
class CodeGenForCausalLM(GPTJForCausalLM):
    """CodeGen 1: GPT-J with query, value and key of each core in turn, fused into one tensor."""

    model_type = "codegen"
    tensors = {
        **GPTJ_TENSORS,
        **{
            f"layers.{{}}.attn_{name}.weight": StoredAs(f"{LAYER}attn.qkv_proj.weight", rows_of_cores(place))
            for place, name in enumerate("qvk")
        },
    }
    ignored_tensors = (f"{LAYER}attn.causal_mask",)

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        config = super().config_from_json(values, dtype)
        check_heads(config, values.where, "n_head")
        if values.has("auto_map"):
            what = "auto_map names custom code, as in CodeGen 2"
            raise UnsupportedModel(f"{values.where}: {what}, which is not supported; CodeGen 1 is")
        return config
