"""What files call the weights of RWKV-6.

GGUF: llama.cpp's llama-arch.cpp and its converter; its first files have a tensor for each mix. Hugging Face: the state
dict of Rwkv6ForCausalLM in the folders of RWKV.
"""

from typing import Any

from sporelm.checkpoints.forms import stacked
from sporelm.checkpoints.tensor_names import Names, Stored, Table
from sporelm.models.blocks.time_mix6 import MIXES

BLOCK, TIME, CHANNEL = "rwkv.blocks.{}.", "rwkv.blocks.{}.attention.", "rwkv.blocks.{}.feed_forward."
_NORMED = (
    ("embedding_norm", "token_embd_norm", "rwkv.blocks.0.pre_ln"),
    ("output_norm", "output_norm", "rwkv.ln_out"),
    ("layers.{}.attn_norm", "blk.{}.attn_norm", f"{BLOCK}ln1"),
    ("layers.{}.ffn_norm", "blk.{}.attn_norm_2", f"{BLOCK}ln2"),
    ("layers.{}.wkv_norm", "blk.{}.time_mix_ln", f"{TIME}ln_x"),
)
_RANKS = [lambda config: config.own.mix] * len(MIXES)


def _vector(ours: str, gguf: str, hf: str) -> Names:
    return Names(f"layers.{{}}.{ours}", f"blk.{{}}.{gguf}.weight", Stored(hf, above=2))


def _each(name: str, number: int, **how: Any) -> Stored:
    """One of what all mixes have in one tensor."""
    return Stored(name, part=number, parts=len(MIXES), **how)


def mix_names(time: str, order: str) -> Table:
    """What rows are mixed by, and what makes decays. `time` begins the names in folders, which have the matrices that
    make mixes in this order."""
    held = {part: order.index(part) for part in MIXES}
    return (
        _vector("mix_x.weight", "time_mix_lerp_x", f"{time}time_maa_x"),
        *(
            Names(
                f"layers.{{}}.mix_{part}.weight",
                _each("blk.{}.time_mix_lerp_fused.weight", number, above=2),
                Stored(f"{time}time_maa_{part}", above=2),
            )
            for number, part in enumerate(MIXES)
        ),
        *(
            Names(
                f"layers.{{}}.mix_{part}_more_a.weight",
                Stored("blk.{}.time_mix_w1.weight", rows=stacked(number, *_RANKS)),
                Stored(f"{time}time_maa_w1", rows=stacked(held[part], *_RANKS), transposed=True),
            )
            for number, part in enumerate(MIXES)
        ),
        *(
            Names(
                f"layers.{{}}.mix_{part}_more.weight",
                _each("blk.{}.time_mix_w2.weight", number),
                _each(f"{time}time_maa_w2", held[part], transposed=True),
            )
            for number, part in enumerate(MIXES)
        ),
        _vector("wkv_decay.bias", "time_mix_decay", f"{time}time_decay"),
        *(
            Names(
                f"layers.{{}}.wkv_decay{end}.weight",
                f"blk.{{}}.time_mix_decay_w{number}.weight",
                Stored(f"{time}time_decay_w{number}", transposed=True),
            )
            for end, number in (("_a", 1), ("", 2))
        ),
    )


NAMES: Table = (
    Names("embedding.weight", "token_embd.weight", "rwkv.embeddings.weight"),
    Names("output.weight", "output.weight", "head.weight"),
    *(Names(*(f"{name}.{kind}" for name in names)) for names in _NORMED for kind in ("weight", "bias")),
    *mix_names(TIME, MIXES),
    Names("layers.{}.wkv.bonus", "blk.{}.time_mix_first.weight", f"{TIME}time_faaaa"),
    *(
        Names(f"layers.{{}}.wkv_{hf[0]}.weight", f"blk.{{}}.time_mix_{hf}.weight", f"{TIME}{hf}.weight")
        for hf in ("receptance", "key", "value", "gate", "output")
    ),
    _vector("ffn_mix.weight", "channel_mix_lerp_k", f"{CHANNEL}time_maa_k"),
    _vector("ffn_mix_gate.weight", "channel_mix_lerp_r", f"{CHANNEL}time_maa_r"),
    *(
        Names(f"layers.{{}}.ffn_{ours}.weight", f"blk.{{}}.channel_mix_{hf}.weight", f"{CHANNEL}{hf}.weight")
        for ours, hf in (("up", "key"), ("down", "value"), ("gate", "receptance"))
    ),
)
APART: Table = tuple(
    Names(f"layers.{{}}.mix_{part}.weight", f"blk.{{}}.time_mix_lerp_{part}.weight", f"{TIME}time_maa_{part}")
    for part in MIXES
)
