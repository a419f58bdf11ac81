"""Zamba2: state spaces; before some of them, a transformer layer that these places share."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from sporelm.checkpoints.family import Family, Field, HfClass, fields
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.tensor_names import HF, Kind
from sporelm.errors import UnsupportedModel
from sporelm.models.blocks import Layer, Linear, Mamba2Mixer, RMSNorm, SharedThenMamba, SharedTransformer
from sporelm.models.blocks.block_memory import list_memories
from sporelm.models.config import MOST_WIDTH, ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.families.layer_kinds import attention_layers, by_key_heads
from sporelm.models.families.space_fields import SharedBlocks, finished, space_fields
from sporelm.models.families.zamba2_names import MOST_PLACES, NAMES
from sporelm.models.families.zamba2_words import KINDS, ROTATES, reworded, said, words
from sporelm.models.inputs import StepInputs
from sporelm.models.registry import architecture

NUMBERS: dict[str, Any] = {"mamba_d_state": 64, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_ngroups": 1}
NUMBERS |= {"n_mamba_heads": 8, "adapter_rank": 128, "num_mem_blocks": 1, "max_position_embeddings": 4096}
NUMBERS |= {"rms_norm_eps": 1e-5, "tie_word_embeddings": True}
FLAGS = (("add_bias_linear", "own.bias"), ("use_shared_attention_adapter", "own.adapts"))


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    config = finished(config, values, kind)
    kinds = values.values.get(KINDS if kind == HF else "layer_types")
    attention = attention_layers(values, kinds, config.layers)
    if len(attention) > MOST_PLACES:
        raise UnsupportedModel(
            f"{values.where}: {len(attention)} layers have a shared block; at most {MOST_PLACES} may"
        )
    rotates = values.flag("use_mem_rope", False) if kind == HF else values.flag(ROTATES, True)
    scales = replace(config.scales, attention=(config.head_dim / 2) ** -0.5)
    own = replace(config.own, attention=attention)
    return replace(config, own=own, scales=scales, rotary=config.rotary if rotates else 0)


@architecture(
    Family(
        "zamba2",
        (HfClass("Zamba2ForCausalLM", "zamba2", NUMBERS, FLAGS),),
        fields(
            *space_fields(
                *("mamba_d_conv", "n_mamba_heads", "mamba_ngroups", "mamba_d_state", "mamba_headdim", "mamba_expand"),
                *("add_bias_linear", ""),
            ),
            Field("head_dim", "attention.key_length", "u32", "attention_head_dim"),
            Field("head_dim", "attention.value_length", "u32", ""),
            Field("own.low", "ssm.time_step_min", "f32", "time_step_min", 0.0, 1.0, 0.001),
            Field("own.blocks", "shared_block_count", "u32", "num_mem_blocks", 1, MOST_PLACES),
            Field("own.rank", "adapter_rank", "u32", "adapter_rank", 1, MOST_WIDTH),
            Field("own.adapts", "", "bool", "use_shared_attention_adapter", weight="layers.{}.shared.attn_q_a0.weight"),
            Field("mlp_bias", "", "bool", "add_bias_linear", weight="layers.{}.shared.ffn_down.bias"),
        ),
        NAMES,
        only={
            "hidden_act": ("gelu",),
            "rms_norm_eps": (1e-5,),
            "use_long_context": (False,),
            "tie_word_embeddings": (True,),
        },
        finish=_finished,
        said=said,
        words=words,
        reworded=reworded,
        regrouped=by_key_heads,
        ffn_widths=4,
        own=SharedBlocks,
    )
)
class Zamba2(Decoder):
    """x + mixer(norm(x)), and shared blocks that also read the embedding (Glorioso et al. 2024).

    No time step is shorter than the configuration's least one, as transformers has it in prompts.
    """

    def layer(self, config: ModelConfig, index: int) -> Layer:
        name, places = f"layers.{index}", sorted(config.own.attention)
        if index not in places:
            return Layer(RMSNorm(f"{name}.attn_norm", config.width, config.eps), Mamba2Mixer(name, config, config.own))
        number, inner = places.index(index), f"{name}.inner"
        owner = places[number % config.own.blocks]
        shared = SharedTransformer(
            f"layers.{owner}.shared",
            config,
            number,
            config.own.rank,
            is_first=owner == index,
            has_attention_adapters=config.own.adapts,
        )
        norm = RMSNorm(f"{inner}.attn_norm", config.width, config.eps)
        return SharedThenMamba(
            shared,
            Linear(f"{name}.shared_out", config.width, config.width),
            norm,
            Mamba2Mixer(inner, config, config.own),
        )

    def through(self, x: Any, step: StepInputs, weights: Mapping[str, Any], caches: Sequence[Any]) -> Any:
        left, first = iter(caches), x
        for layer in self.layers:
            own = islice(left, len(list_memories(layer.memory())))
            x = layer(x, step, weights, *([first] if isinstance(layer, SharedThenMamba) else []), *own)
        return x
