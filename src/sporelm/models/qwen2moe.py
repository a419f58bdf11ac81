"""Qwen1.5-MoE and Qwen2-57B-A14B: Qwen2 with experts, and one that every token goes through by a gate of its own."""

from sporelm.models.blocks import Attention, Layer, Mixture, RMSNorm
from sporelm.models.decoder import Decoder
from sporelm.models.qwen2 import windowed
from sporelm.models.registry import architecture
from sporelm.ops.routing import MOST_EXPERTS
from sporelm.weights.config import MOST_WIDTH, ModelConfig
from sporelm.weights.family import Family, Field, HfClass, fields
from sporelm.weights.names import COMMON, Names, Stored, Table, changed

MLP = "model.layers.{}.mlp."
EXPERTS = (
    Field("experts.count", "expert_count", "u32", "num_experts", 1, MOST_EXPERTS),
    Field("experts.used", "expert_used_count", "u32", "num_experts_per_tok", 1, MOST_EXPERTS),
    Field("experts.ffn", "expert_feed_forward_length", "u32", "moe_intermediate_size", 1, MOST_WIDTH),
    Field("experts.renormalize", "", "bool", "norm_topk_prob"),
)
EXPERT_NAMES: Table = (
    Names("layers.{}.ffn_gate_inp.weight", "blk.{}.ffn_gate_inp.weight", f"{MLP}gate.weight"),
    *(
        Names(
            f"layers.{{}}.ffn_{part}_exps.weight",
            f"blk.{{}}.ffn_{part}_exps.weight",
            Stored(f"{MLP}experts.{{e}}.{part}_proj.weight", each=True),
        )
        for part in ("gate", "up", "down")
    ),
)
SHARED_NAMES: Table = (
    Names(
        "layers.{}.ffn_gate_inp_shexp.weight",
        Stored("blk.{}.ffn_gate_inp_shexp.weight", flat=True),
        f"{MLP}shared_expert_gate.weight",
    ),
    *(
        Names(
            f"layers.{{}}.ffn_{part}_shexp.weight",
            f"blk.{{}}.ffn_{part}_shexp.weight",
            f"{MLP}shared_expert.{part}_proj.weight",
        )
        for part in ("gate", "up", "down")
    ),
)
EVERY_LAYER = {"hidden_act": ("silu",), "decoder_sparse_step": (1,), "mlp_only_layers": ([],)}


def _unsaid(config: ModelConfig) -> str:
    return "the weights of its experts are renormalized" if config.experts and config.experts.renormalize else ""


@architecture(
    Family(
        "qwen2moe",
        (
            HfClass(
                "Qwen2MoeForCausalLM",
                "qwen2_moe",
                {"num_key_value_heads": 16, "max_position_embeddings": 32768}
                | {"num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408}
                | {"shared_expert_intermediate_size": 5632},
                (("norm_topk_prob", "experts.renormalize"),),
            ),
        ),
        fields(
            *EXPERTS,
            Field(
                "experts.shared_ffn",
                "expert_shared_feed_forward_length",
                "u32",
                "shared_expert_intermediate_size",
                1,
                MOST_WIDTH,
            ),
        ),
        changed(COMMON, *EXPERT_NAMES, *SHARED_NAMES),
        fixed={"attention_bias": True},
        only={**EVERY_LAYER, "qkv_bias": (True,)},
        finish=windowed,
        unsaid=_unsaid,
        windowless=True,
    )
)
class Qwen2Moe(Decoder):
    """Qwen2's layer with a mixture in place of its feed-forward block (Yang et al. 2024)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        name = f"layers.{index}"
        return Layer(
            RMSNorm(f"{name}.attn_norm", config.width, config.eps),
            Attention(name, config, config.window_of(index)),
            RMSNorm(f"{name}.ffn_norm", config.width, config.eps),
            Mixture(name, config, scores="softmax"),
        )
