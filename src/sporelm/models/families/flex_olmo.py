"""FlexOlmo: OLMo 2's layer with experts in place of its feed-forward block."""

from sporelm.models.blocks import Layer
from sporelm.models.decoder import Decoder
from sporelm.models.families.olmo2 import normed_behind
from sporelm.models.registry import architecture
from sporelm.weights.config import ModelConfig
from sporelm.weights.experts import expert_fields, expert_names
from sporelm.weights.family import ATTENTION_BIAS, Family, HfClass, fields
from sporelm.weights.names import COMMON, HEAD_NORMS, POST_NORMS, changed


@architecture(
    Family(
        "flex_olmo",
        (
            HfClass(
                "FlexOlmoForCausalLM",
                "flex_olmo",
                {"num_experts": 7, "num_experts_per_tok": 5, "max_position_embeddings": 4096, "rope_theta": 500000.0},
                (("norm_topk_prob", "experts.renormalize"), ("attention_bias", "attention_bias")),
            ),
        ),
        fields(
            *ATTENTION_BIAS,
            *expert_fields(count="num_experts", used="num_experts_per_tok", renormalize="norm_topk_prob"),
        ),
        changed(COMMON, *HEAD_NORMS, *POST_NORMS, *expert_names()),
    )
)
class FlexOlmo(Decoder):
    """x + norm(attention(x)), then x + norm(experts(x)) (Shi et al. 2025)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return normed_behind(config, index)
