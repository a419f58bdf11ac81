"""Gemma 3n, its text model: rows of several streams, layers that borrow keys and values, a row for each layer."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sporelm.checkpoints.beside_vision import OTHERS, text_names
from sporelm.checkpoints.family import OPTIONAL, Family, Field, HfClass, fields
from sporelm.checkpoints.rope_fields import MOST_THETA
from sporelm.checkpoints.tensor_names import COMMON, HEAD_NORMS, HF, POST_NORMS, Names, changed
from sporelm.checkpoints.windows import every
from sporelm.models.blocks import (
    AltUpLayer,
    AltUpStreams,
    GatedMLP,
    Laurel,
    PerLayerInput,
    PerLayerInputs,
    RMSNorm,
    SharedKVAttention,
)
from sporelm.models.blocks.altup import ALTUP_NAMES, spread_names
from sporelm.models.blocks.per_layer_inputs import LAYER_INPUT_NAMES, run_per_layer_inputs
from sporelm.models.blocks.rms_norm import ones_table
from sporelm.models.config import MOST_LAYERS, MOST_VOCAB, MOST_WIDTH, ModelConfig
from sporelm.models.families.gemma2 import MOST
from sporelm.models.families.gemma3n_words import UNREAD, Gemma3nParts, finished, noticed, reworded, said, wanted, words
from sporelm.models.families.gemma4 import NORMS, Gemma4
from sporelm.models.inputs import StepInputs
from sporelm.models.params import Param
from sporelm.models.position_tables import position_tables
from sporelm.models.registry import architecture

INPUT = "per_layer_input"
STREAMS = 4  # as files hold their matrices
DEFAULTS: dict[str, Any] = {"num_key_value_heads": 2, "head_dim": 256, f"hidden_size_{INPUT}": 256, "laurel_rank": 64}
DEFAULTS |= {"max_position_embeddings": 32768, "tie_word_embeddings": True, "altup_num_inputs": 4, "rope_theta": 1e6}
DEFAULTS |= {"final_logit_softcapping": 30.0, "num_kv_shared_layers": 15, f"vocab_size_{INPUT}": 262144}
NAMES = changed(
    COMMON,
    *HEAD_NORMS,
    Names("layers.{}.ffn_norm.weight", "blk.{}.ffn_norm.weight", "model.layers.{}.pre_feedforward_layernorm.weight"),
    *POST_NORMS,
    *LAYER_INPUT_NAMES,
    *ALTUP_NAMES,
    *spread_names(STREAMS),
)


@architecture(
    Family(
        "gemma3n",
        (
            HfClass("Gemma3nForCausalLM", "gemma3n_text", DEFAULTS, (("sliding_window", "window"),)),
            HfClass("Gemma3nForConditionalGeneration", "gemma3n", DEFAULTS, (("sliding_window", "window"),)),
        ),
        fields(
            Field("own.inputs", f"embedding_length_{INPUT}", "u32", f"hidden_size_{INPUT}", 1, MOST_WIDTH),
            Field("own.streams", "altup.num_inputs", "u32", "altup_num_inputs", STREAMS, STREAMS),
            Field("own.borrowing", "attention.shared_kv_layers", "u32", "num_kv_shared_layers", 0, MOST_LAYERS, 0),
            Field("own.rank", "", "u32", "laurel_rank", 1, MOST_WIDTH),
            Field("own.vocab", "", "u32", f"vocab_size_{INPUT}", 1, MOST_VOCAB),
            Field("logit_cap", "final_logit_softcapping", "f32", "final_logit_softcapping", 0.0, MOST, OPTIONAL),
            Field("local_theta", "rope.freq_base_swa", "f32", "rope_local_base_freq", 1.0, MOST_THETA, 10000.0),
        ),
        NAMES,
        others={HF: text_names(NAMES)},
        ignored=(*UNREAD, *OTHERS),
        only={
            "hidden_activation": ("gelu_pytorch_tanh",),
            "attention_bias": (False,),
            "altup_active_idx": (0,),
            "altup_correct_scale": (True,),
        },
        finish=finished,
        noticed=noticed,
        reworded=reworded,
        said=said,
        words=words,
        wanted=wanted,
        full_layers=every(5),
        tells_layers=True,
        own=Gemma3nParts,
    )
)
class Gemma3n(Gemma4):
    """A layer for the first of several streams, which corrects the others (Gemma team 2025)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.inputs = PerLayerInputs(config, config.own.inputs, config.own.vocab)
        self.streams = AltUpStreams(config, config.own.streams)

    def layer(self, config: ModelConfig, index: int) -> AltUpLayer:
        name, own, window = f"layers.{index}", config.own, config.window_of(index)
        norms = [RMSNorm(f"{name}.{part}_norm", config.width, config.eps) for part in NORMS]
        attention = SharedKVAttention(name, config, window, borrows=index >= config.layers - own.borrowing)
        mlp = GatedMLP(name, config, "gelu_tanh", above=own.above(index))
        row, laurel = PerLayerInput(name, config, own.inputs), Laurel(name, config, own.rank)
        return AltUpLayer(name, config, own.streams, laurel, row, norms, attention, mlp)

    def params(self) -> list[Param]:
        return [*super().params(), *self.streams.params()]

    def tables(self, context: int) -> dict[str, np.ndarray]:
        rows = self.inputs.tables() if self.inputs else {}
        return position_tables(self.config, context) | ones_table(self.config.head_dim) | rows

    def through(self, x: Any, step: StepInputs, weights: Mapping[str, Any], caches: Sequence[Any]) -> Any:
        assert self.inputs is not None
        rows = self.inputs(x, step, weights)
        local = [self.config.window_of(index) is not None for index in range(len(self.layers))]
        return run_per_layer_inputs(self.layers, local, self.streams(x, weights), rows, step, weights, caches)

    def hidden(self, step: StepInputs, weights: Mapping[str, Any], caches: Sequence[Any]) -> Any:
        x = self.through(self.embedded(step, weights), step, weights, caches)
        return self.norm(self.streams.merged(x, step.rows, weights), weights)
