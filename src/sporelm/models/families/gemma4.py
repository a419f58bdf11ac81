"""Gemma 4, its text model: wider heads without a window, layers that borrow keys and values, a row for each layer."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sporelm.checkpoints.beside_vision import OTHERS, text_names
from sporelm.checkpoints.experts import expert_fields
from sporelm.checkpoints.family import OPTIONAL, Family, Field, HfClass, fields
from sporelm.checkpoints.rope_fields import MOST_THETA
from sporelm.checkpoints.tensor_names import COMMON, GGUF, HEAD_NORMS, HF, POST_NORMS, Names, changed
from sporelm.models.blocks import (
    GatedMLP,
    PerLayerInput,
    PerLayerInputLayer,
    PerLayerInputs,
    RMSNorm,
    SharedKVAttention,
    SharedKVLayer,
)
from sporelm.models.blocks.parallel_mixture import ParallelMixture
from sporelm.models.blocks.per_layer_inputs import LAYER_INPUT_NAMES, run_per_layer_inputs
from sporelm.models.blocks.rms_norm import ones_table
from sporelm.models.config import MOST_HEAD_DIM, MOST_HEADS, MOST_LAYERS, MOST_WIDTH, ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.families.gemma2 import MOST
from sporelm.models.families.gemma4_lists import finished, noticed, of_gguf, said
from sporelm.models.families.gemma4_names import FUSED, SIDE_NAMES
from sporelm.models.families.gemma4_words import DIM, ONLY, Gemma4Parts, class_of, of_hf, of_kind, words
from sporelm.models.inputs import StepInputs
from sporelm.models.params import Param
from sporelm.models.position_tables import position_tables
from sporelm.models.registry import architecture

DEFAULTS = {"num_key_value_heads": 4, "head_dim": DIM, "global_head_dim": 512, "hidden_size_per_layer_input": 256}
NORMS = ("attn", "attn_post", "ffn", "ffn_post")
DEFAULTS |= {"max_position_embeddings": 131072, "tie_word_embeddings": True, "sliding_window": 512}
UNIFIED = DEFAULTS | {"hidden_size_per_layer_input": 0, "sliding_window": 1024, "max_position_embeddings": 262144}
NAMES = changed(
    COMMON,
    *HEAD_NORMS,
    Names("layers.{}.ffn_norm.weight", "blk.{}.ffn_norm.weight", "model.layers.{}.pre_feedforward_layernorm.weight"),
    *POST_NORMS,
    *LAYER_INPUT_NAMES,
    *SIDE_NAMES,
)
FLAGS = (("sliding_window", "window"), ("attention_k_eq_v", "own.tied"), ("use_double_wide_mlp", "own.wide"))


@architecture(
    Family(
        "gemma4",
        (
            HfClass("Gemma4ForCausalLM", "gemma4_text", DEFAULTS, FLAGS),
            HfClass("Gemma4ForConditionalGeneration", "gemma4", DEFAULTS, FLAGS),
            HfClass("Gemma4UnifiedForCausalLM", "gemma4_unified_text", UNIFIED, FLAGS),
            HfClass("Gemma4UnifiedForConditionalGeneration", "gemma4_unified", UNIFIED, FLAGS),
        ),
        fields(
            Field("head_dim", "attention.key_length", "u32", "global_head_dim"),
            Field("head_dim", "attention.value_length", "u32", ""),
            Field("kv_heads", "", "u32", "num_global_key_value_heads"),
            Field("own.local_dim", "attention.key_length_swa", "u32", "head_dim", 2, MOST_HEAD_DIM),
            Field("own.local_dim", "attention.value_length_swa", "u32", "", 2, MOST_HEAD_DIM),
            Field("own.local_dim", "rope.dimension_count_swa", "u32", "", 2, MOST_HEAD_DIM),
            Field("own.local_heads", "", "u32", "num_key_value_heads", 1, MOST_HEADS),
            Field("own.borrowing", "attention.shared_kv_layers", "u32", "num_kv_shared_layers", 0, MOST_LAYERS, 0),
            Field(
                "own.inputs", "embedding_length_per_layer_input", "u32", "hidden_size_per_layer_input", 0, MOST_WIDTH, 0
            ),
            *expert_fields(count="num_experts", used="top_k_experts", ffn="moe_intermediate_size", optional=True),
            Field("own.tied", "", "bool", "attention_k_eq_v", default=False),
            Field("own.wide", "", "bool", "use_double_wide_mlp", default=False),
            Field("logit_cap", "final_logit_softcapping", "f32", "final_logit_softcapping", 0.0, MOST, OPTIONAL),
            Field("local_theta", "rope.freq_base_swa", "f32", "rope_local_base_freq", 1.0, MOST_THETA, 10000.0),
        ),
        NAMES,
        others={HF: text_names(NAMES), GGUF: FUSED},
        ignored=OTHERS,
        only=ONLY,
        finish=finished,
        noticed=noticed,
        regrouped=of_gguf,
        reworded=of_hf,
        said=said,
        choose=class_of,
        words=words,
        tells_layers=True,
        own=Gemma4Parts,
    )
)
class Gemma4(Decoder):
    """Gemma 3's layer with normed values, then the layer's own row, all times a learned number (Gemma team 2026)."""

    layers: Sequence[SharedKVLayer]

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.inputs = PerLayerInputs(config, config.own.inputs) if config.own.inputs else None

    def layer(self, config: ModelConfig, index: int) -> SharedKVLayer:
        name, config, window = f"layers.{index}", of_kind(config, index), config.window_of(index)
        own, norms = config.own, [RMSNorm(f"layers.{index}.{part}_norm", config.width, config.eps) for part in NORMS]
        borrows, tied = index >= config.layers - own.borrowing, own.tied and window is None
        attention = SharedKVAttention(name, config, window, borrows=borrows, tied=tied)
        row = PerLayerInput(name, config, own.inputs) if own.inputs else None
        mlp = GatedMLP(name, config, "gelu_tanh")
        if config.experts is None:
            return PerLayerInputLayer(name, row, norms, attention, mlp)
        return PerLayerInputLayer(
            name, row, [*norms[:2], None, norms[3]], attention, ParallelMixture(name, config, mlp)
        )

    def params(self) -> list[Param]:
        return [*super().params(), *(self.inputs.params() if self.inputs else [])]

    def memory(self) -> list[Any]:
        return [layer.memory() for layer in self.layers if not layer.attention.borrows]

    def tables(self, context: int) -> dict[str, np.ndarray]:
        config, dims = self.config, (self.config.head_dim, self.config.own.local_dim)
        ones = {name: table for dim in dims for name, table in ones_table(dim).items()}
        rows = self.inputs.tables() if self.inputs else {}
        return position_tables(config, context, config.own.local_dim) | ones | rows

    def through(self, x: Any, step: StepInputs, weights: Mapping[str, Any], caches: Sequence[Any]) -> Any:
        rows = self.inputs(x, step, weights) if self.inputs else [None] * len(self.layers)
        local = [self.config.window_of(index) is not None for index in range(len(self.layers))]
        return run_per_layer_inputs(self.layers, local, x, rows, step, weights, caches)
