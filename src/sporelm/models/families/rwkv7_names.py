"""What files call the weights of RWKV-7.

GGUF: llama.cpp's llama-arch.cpp and its converter. Hugging Face: the state dict of RWKV7ForCausalLM of
flash-linear-attention; folders of its first version have all mixes in one tensor.
"""

from collections.abc import Callable

from sporelm.checkpoints.tensor_names import Names, Stored, Table
from sporelm.models.blocks.time_mix7 import MIXES
from sporelm.models.families.rwkv_words import NORMS

TIME, CHANNEL = "model.layers.{}.attn.", "model.layers.{}.ffn."
RANKS = (
    ("decay", "decay", "decay"),
    ("rate", "iclr", "a"),
    ("share", "value_residual_mix", "v"),
    ("gate", "gate", "gate"),
)


def _named(ours: str, gguf: str, hf: str) -> Names:
    return Names(f"layers.{{}}.{ours}", f"blk.{{}}.time_mix_{gguf}.weight", f"{TIME}{hf}")


def _low_rank(ours: str, letter: str) -> Table:
    """Two narrow products, and the bias of the second."""
    parts = (("_a.weight", 1, "0.weight"), (".weight", 2, "2.weight"), (".bias", 0, "2.bias"))
    return tuple(_named(f"wkv_{ours}{end}", f"{letter}{n}", f"{letter}_lora.lora.{hf}") for end, n, hf in parts)


def _mixes(form: Callable[[int], Stored]) -> Table:
    """The vectors that rows are mixed by: one tensor in GGUF files."""
    fused = "blk.{}.time_mix_lerp_fused.weight"
    return tuple(
        Names(f"layers.{{}}.mix_{part}.weight", Stored(fused, part=number, parts=len(MIXES), above=2), form(number))
        for number, part in enumerate(MIXES)
    )


NAMES: Table = (
    *NORMS,
    *_mixes(lambda number: Stored(f"{TIME}x_{MIXES[number]}", above=2)),
    *(
        _named(f"wkv_{ours}.weight", gguf, f"{ours}_proj.weight")
        for ours, gguf in (("r", "receptance"), ("k", "key"), ("v", "value"), ("o", "output"))
    ),
    *(names for ours, _, letter in RANKS for names in _low_rank(ours, letter[0] if ours != "decay" else "w")),
    _named("wkv.removed", "k_k", "k_k"),
    _named("wkv.kept", "k_a", "k_a"),
    Names("layers.{}.wkv.bonus", Stored("blk.{}.time_mix_r_k.weight", flat=True), f"{TIME}r_k"),
    *(
        Names(f"layers.{{}}.wkv_norm.{kind}", f"blk.{{}}.time_mix_ln.{kind}", f"{TIME}g_norm.{kind}")
        for kind in ("weight", "bias")
    ),
    Names("layers.{}.ffn_mix.weight", "blk.{}.channel_mix_lerp_k.weight", f"{CHANNEL}x_k"),
    Names("layers.{}.ffn_up.weight", "blk.{}.channel_mix_key.weight", f"{CHANNEL}key.weight"),
    Names("layers.{}.ffn_down.weight", "blk.{}.channel_mix_value.weight", f"{CHANNEL}value.weight"),
)
OLD_MIXES = _mixes(lambda number: Stored(f"{TIME}x_x", part=number, parts=len(MIXES)))
# By what values would be shared, of the first layer: llama.cpp wants them and reads them not, some folders have them.
UNREAD = tuple(str(name) for names in NAMES if "wkv_share" in names.ours for name in names[1:])
