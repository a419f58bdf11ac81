"""GPT-NeoX-Japanese: GPT-NeoX in turn and not in parallel, with no bias but one in the last layer."""

from dataclasses import replace
from typing import Any

from sporelm.models.blocks import MLP, Attention, Layer, LayerNorm, pre_norm
from sporelm.models.decoder import Decoder
from sporelm.models.families.gptneox import NAMES as ALIKE
from sporelm.models.families.gptneox import reworded, words
from sporelm.models.registry import architecture
from sporelm.weights.config import ModelConfig
from sporelm.weights.family import GELUS, Family, Field, HfClass, activation, fields
from sporelm.weights.fields import Fields
from sporelm.weights.names import Names, Table, changed, form_in

MOST_TIMES = 64


def _renamed(table: Table) -> Table:
    forms = ((names, form_in(names, "hf")) for names in table)
    return tuple(
        names._replace(hf=replace(form, name=form.name.replace("gpt_neox.", "gpt_neox_japanese.")))
        for names, form in forms
    )


NAMES = changed(
    _renamed(ALIKE),
    Names("layers.{}.attn_o.bias", "blk.{}.attn_output.bias", "gpt_neox_japanese.layers.{}.attention.dense_bias"),
)


def _reworded(values: dict[str, Any]) -> dict[str, Any]:
    """The width of the feed-forward block is said in widths."""
    read = Fields(values, "config.json")
    times = read.integer("intermediate_multiple_size", 1, MOST_TIMES, 4)
    return reworded(values, 1.0) | {"intermediate_size": times * read.integer("hidden_size", 1, 1 << 20)}


@architecture(
    Family(
        "gpt_neox_japanese",
        (
            HfClass(
                "GPTNeoXJapaneseForCausalLM", "gpt_neox_japanese", {"tie_word_embeddings": True, "layer_norm_eps": 1e-5}
            ),
        ),
        fields(
            Field("eps", "attention.layer_norm_epsilon", "f32", "layer_norm_eps"),
            activation("hidden_act", "gelu"),
            without=("kv_heads", "head_dim", "window"),
        ),
        NAMES,
        only={},
        reworded=_reworded,
        words=lambda config: {**words(config), "intermediate_multiple_size": config.ffn // config.width},
        ignored=("gpt_neox_japanese.layers.{}.attention.rotary_emb.inv_freq",),
        partial_rotary=True,
    )
)
class GPTNeoXJapanese(Decoder):
    """x + attention(norm(x)), then x + mlp(norm(x)) (ABEJA 2022)."""

    norms = LayerNorm

    def layer(self, config: ModelConfig, index: int) -> Layer:
        name = f"layers.{index}"
        attention = Attention(name, replace(config, attention_out_bias=index == config.layers - 1))
        return pre_norm(config, index, attention, MLP(name, config, GELUS[config.activation]), norm=self.norms)
