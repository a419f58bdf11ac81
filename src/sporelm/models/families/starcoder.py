"""StarCoder 1, SantaCoder: GPT-2 with one head of keys and values, its products stored as most have them."""

from dataclasses import replace

from sporelm.models.blocks import MLP, Layer, pre_norm
from sporelm.models.families.gpt2 import DEFAULTS, FIXED, GPT2, LAYER, NUMBERS
from sporelm.models.families.gpt2 import NAMES as TURNED
from sporelm.models.registry import architecture
from sporelm.weights.config import ModelConfig
from sporelm.weights.family import GELUS, Family, Field, HfClass, activation, fields
from sporelm.weights.fields import Fields
from sporelm.weights.names import Kind, Names, Stored

NAMES = tuple(
    Names(names.ours, names.gguf, replace(names.hf, transposed=False) if isinstance(names.hf, Stored) else names.hf)
    for names in TURNED
)


def _of_one_head(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    return replace(config, kv_heads=1)


@architecture(
    Family(
        "starcoder",
        (
            HfClass(
                "GPTBigCodeForCausalLM",
                "gpt_bigcode",
                DEFAULTS,
            ),
        ),
        fields(
            *NUMBERS,
            Field("kv_heads", "attention.head_count_kv", "u32", ""),
            activation("activation_function", "gelu_pytorch_tanh"),
            without=("head_dim", "rotary", "window"),
        ),
        NAMES,
        fixed=FIXED,
        only={"multi_query": (True,), "scale_attn_weights": (True,), "add_cross_attention": (False,)},
        finish=_of_one_head,
        positions="n_positions",
        ffn_widths=4,
        ignored=(f"{LAYER}attn.bias", f"{LAYER}attn.masked_bias"),
        prefix="transformer.",
    )
)
class StarCoder(GPT2):
    """All queries share a head of keys and values (Li et al. 2023; Shazeer 2019)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, mlp=MLP(f"layers.{index}", config, GELUS[config.activation]), norm=self.norms)
