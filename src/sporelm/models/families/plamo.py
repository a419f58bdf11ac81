"""PLaMo: attention and the feed-forward block side by side, behind one norm; query heads take turns over key heads."""

from typing import Any

import numpy as np

from sporelm.errors import ModelFileError
from sporelm.models.blocks import Layer, pre_norm
from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture
from sporelm.weights.config import ModelConfig
from sporelm.weights.family import Family, HfClass
from sporelm.weights.fields import shown
from sporelm.weights.names import COMMON, Names, Stored, changed

LAYER = "model.layers.layers.{}."
SHARED = "n_shared_head"


def _rows(config: ModelConfig) -> np.ndarray:
    """Folders have the heads of a group apart, as many of other groups between them; GGUF files have them together."""
    heads = np.arange(config.heads).reshape(-1, config.kv_heads).T.reshape(-1, 1)
    found: np.ndarray = (heads * config.head_dim + np.arange(config.head_dim)).reshape(-1)
    return found


def _reworded(values: dict[str, Any]) -> dict[str, Any]:
    """With the heads of keys, which config.json says by how many query heads share one."""
    heads, shared = values.get("num_attention_heads"), values.get(SHARED, 8)
    if type(heads) is not int or type(shared) is not int or shared < 1 or heads % shared:
        what = f"{SHARED} is {shown(shared)}; it must part the {shown(heads)} heads into groups"
        raise ModelFileError(f"config.json: {what}")
    return {**values, "num_key_value_heads": heads // shared}


NAMES = changed(
    COMMON,
    Names("layers.{}.attn_norm.weight", "blk.{}.attn_norm.weight", f"{LAYER}norm.weight"),
    Names("layers.{}.attn_q.weight", "blk.{}.attn_q.weight", Stored(f"{LAYER}self_attn.q_proj.weight", rows=_rows)),
    *(
        Names(f"layers.{{}}.attn_{part}.weight", f"blk.{{}}.attn_{part}.weight", f"{LAYER}self_attn.{part}_proj.weight")
        for part in "kv"
    ),
    Names(
        "layers.{}.attn_o.weight",
        "blk.{}.attn_output.weight",
        Stored(f"{LAYER}self_attn.o_proj.weight", columns=_rows),
    ),
    *(
        Names(f"layers.{{}}.ffn_{part}.weight", f"blk.{{}}.ffn_{part}.weight", f"{LAYER}mlp.{part}_proj.weight")
        for part in ("gate", "up", "down")
    ),
)


@architecture(
    Family(
        "plamo",
        (HfClass("PlamoForCausalLM", "plamo"),),
        names=NAMES,
        fixed={"parallel": True},
        reworded=_reworded,
        words=lambda config: {SHARED: config.heads // config.kv_heads},
    )
)
class Plamo(Decoder):
    """x + attention(norm(x)) + mlp(norm(x)) (Preferred Networks 2023)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, shared=True)
