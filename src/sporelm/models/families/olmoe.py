"""OLMoE: Llama with norms of whole rows of queries and keys, and experts in every layer."""

from sporelm.models.blocks import Attention, Layer, pre_norm
from sporelm.models.decoder import Decoder
from sporelm.models.families.olmo import LEAST, MOST
from sporelm.models.registry import architecture
from sporelm.weights.config import ModelConfig
from sporelm.weights.experts import expert_fields, expert_names, meaning
from sporelm.weights.family import OPTIONAL, Family, Field, HfClass, fields
from sporelm.weights.names import COMMON, HEAD_NORMS, changed


def _unsaid(config: ModelConfig) -> str:
    limited = "its queries, keys and values have a limit" if config.qkv_limit else ""
    return limited or meaning(renormalize=False)(config)


@architecture(
    Family(
        "olmoe",
        (
            HfClass(
                "OlmoeForCausalLM",
                "olmoe",
                {"num_experts": 64, "num_experts_per_tok": 8, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
                (("norm_topk_prob", "experts.renormalize"),),
            ),
        ),
        fields(
            Field("qkv_limit", "", "f32", "clip_qkv", LEAST, MOST, OPTIONAL),
            *expert_fields(
                ("renormalize",), count="num_experts", used="num_experts_per_tok", renormalize="norm_topk_prob"
            ),
        ),
        changed(COMMON, *HEAD_NORMS, *expert_names()),
        only={"hidden_act": ("silu",), "attention_bias": (False,)},
        unsaid=_unsaid,
    )
)
class Olmoe(Decoder):
    """Rows of queries and keys are normed; a mixture in place of Llama's feed-forward block (Muennighoff 2024)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        attention = Attention(f"layers.{index}", config, config.window_of(index), norm="whole")
        return pre_norm(config, index, attention)
