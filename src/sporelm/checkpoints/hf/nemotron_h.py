"""Hugging Face folders of Nemotron-H and Nemotron 3."""

from typing import Any, Final

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.expert_keys import hf_expert_keys
from sporelm.checkpoints.gguf.nemotron_h import LATENT_KEY, NEMOTRON_H_CONSTANTS, with_layer_types
from sporelm.checkpoints.gguf_tensors import PARTS
from sporelm.checkpoints.hf.mamba import BACKBONE_TENSORS, LAYER
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import choice_bias_tensors, expert_tensors
from sporelm.checkpoints.mamba_keys import mamba2_hf_keys, mamba2_hf_tensors, with_hf_mamba2_sizes
from sporelm.checkpoints.schema_registry import register
from sporelm.errors import ModelFileError
from sporelm.models.architectures.nemotron_h import ATTENTION, DENSE, MAMBA, MOE, NemotronH, NemotronHConfig
from sporelm.models.config import ModelConfig

MIXER: Final = f"{LAYER}mixer."
# Letters of `hybrid_override_pattern`, and older names -> layer types of transformers 5.
LAYER_TYPES: Final = {"M": MAMBA, "*": ATTENTION, "E": MOE, "-": DENSE, "mamba": MAMBA, "attention": ATTENTION}
DEFAULT_PATTERN: Final = "ME*-"
DEFAULT_HEAD_DIM: Final = 128
# Keys of transformers 5 -> older keys.
OLDER_KEYS: Final = {
    "n_groups": "mamba_n_groups",
    "conv_kernel": "mamba_d_conv",
    "use_conv_bias": "mamba_conv_bias",
    "time_step_limit": "mamba_dt_limit",
}


def normalize(values: ConfigValues) -> ConfigValues:
    """Return the values with a list of layer types in place of a pattern of letters, and with the keys of transformers
    5."""
    given = values.get("layers_block_type") or values.get("layer_types")
    given = given or values.get("hybrid_override_pattern") or DEFAULT_PATTERN
    if not isinstance(given, str | list):
        what = f"layers_block_type is {format_value(given)}; it must be a list of layer types"
        raise ModelFileError(f"{values.where}: {what}")
    kinds = [LAYER_TYPES.get(each, each) if isinstance(each, str) else each for each in given]
    older = {key: values.get(old) for key, old in OLDER_KEYS.items() if values.has(old)}
    head_dims = [values.get(key) for key in ("head_dim", "attention_head_dim") if values.has(key)]
    head_dim = head_dims[0] if head_dims else DEFAULT_HEAD_DIM
    return values.with_changes(
        {**older, "head_dim": head_dim, "layers_block_type": kinds, "num_hidden_layers": len(kinds)}
    )


@register
class NemotronHForCausalLM(HfSchema):
    """Nemotron-H. Some folders have the names of transformers 5's modules."""

    model_type = "nemotron_h"
    architecture = NemotronH
    keys = hf_keys(
        *mamba2_hf_keys(
            conv_kernel="conv_kernel",
            num_heads="mamba_num_heads",
            num_groups="n_groups",
            state_size="ssm_state_size",
            head_dim="mamba_head_dim",
            has_bias="use_bias",
            has_conv_bias="use_conv_bias",
        ),
        *hf_expert_keys(
            count="n_routed_experts",
            used="num_experts_per_tok",
            ffn="moe_intermediate_size",
            shared="n_shared_experts",
            shared_ffn="moe_shared_expert_intermediate_size",
            scale="routed_scaling_factor",
            renormalize="norm_topk_prob",
            groups="n_group",
            top_groups="topk_group",
            optional=True,
        ),
        LATENT_KEY,
        Key("mlp_bias", "mlp_bias", "bool"),
        Key("eps", "layer_norm_epsilon", "f32"),
    )
    class_keys = {
        "use_bias": "mamba.has_bias",
        "use_conv_bias": "mamba.has_conv_bias",
        "mlp_bias": "mlp_bias",
        "norm_topk_prob": "experts.renormalize",
    }
    defaults = {
        "num_key_value_heads": 8,
        "intermediate_size": 21504,
        "mamba_num_heads": 128,
        "mamba_head_dim": 64,
        "ssm_state_size": 128,
        "n_groups": 8,
        "conv_kernel": 4,
        "layer_norm_epsilon": 1e-5,
        "max_position_embeddings": 4096,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "moe_intermediate_size": 7688,
        "moe_shared_expert_intermediate_size": 7688,
        "norm_topk_prob": True,
    }
    constants = NEMOTRON_H_CONSTANTS
    supported = {
        "mlp_hidden_act": ("relu2",),
        "mamba_hidden_act": ("silu",),
        "attention_bias": (False,),
        "sliding_window": (None,),
        "tie_word_embeddings": (False,),
    }
    tensors = {
        **BACKBONE_TENSORS,
        **mamba2_hf_tensors(MIXER),
        **{f"layers.{{}}.attn_{name}.weight": f"{MIXER}{name}_proj.weight" for name in "qkvo"},
        **expert_tensors(MIXER),
        **choice_bias_tensors(f"{MIXER}gate.e_score_correction_bias"),
        **{
            f"layers.{{}}.ffn_{name}.{part}": f"{MIXER}{stored}.{part}"
            for name, stored in (
                ("up", "up_proj"),
                ("up_shexp", "shared_experts.up_proj"),
                ("down", "down_proj"),
                ("down_shexp", "shared_experts.down_proj"),
                ("latent_down", "fc1_latent_proj"),
                ("latent_up", "fc2_latent_proj"),
            )
            for part in PARTS
        },
    }
    prefix_variants = (("backbone.", "model."),)
    ignored_tensors = ("mtp.*",)
    has_mtp_layers = True

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        values = normalize(values)
        config = super().config_from_json(values, dtype)
        assert isinstance(config, NemotronHConfig)
        return with_layer_types(with_hf_mamba2_sizes(config, values), values)

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        assert isinstance(config, NemotronHConfig)
        return {"layers_block_type": list(config.layer_types)}
