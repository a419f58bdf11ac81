"""What files call the weights of RecurrentGemma. llama.cpp does not know it: its names in GGUF files are ours."""

from sporelm.checkpoints.tensor_names import COMMON, Names, Stored, changed, with_bias

LAYER = "model.layers.{}."
BLOCK, UNIT = f"{LAYER}temporal_block.", f"{LAYER}temporal_block.rg_lru."
NAMES = changed(
    COMMON,
    Names("output_norm.weight", "output_norm.weight", Stored("model.final_norm.weight", plus=1.0)),
    *(
        Names(
            f"layers.{{}}.{part}_norm.weight", f"blk.{{}}.{part}_norm.weight", Stored(f"{LAYER}{hf}.weight", plus=1.0)
        )
        for part, hf in (("attn", "temporal_pre_norm"), ("ffn", "channel_pre_norm"))
    ),
    *(
        names
        for ours, gguf in (("q", "q"), ("k", "k"), ("v", "v"), ("o", "output"))
        for names in with_bias(f"layers.{{}}.attn_{ours}", f"blk.{{}}.attn_{gguf}", f"{BLOCK}{ours}_proj")
    ),
    *(
        names
        for part in ("gate", "up", "down")
        for names in with_bias(f"layers.{{}}.ffn_{part}", f"blk.{{}}.ffn_{part}", f"{LAYER}mlp_block.{part}_proj")
    ),
    *(
        names
        for ours, hf in (("x", "x"), ("y", "y"), ("o", "out"))
        for names in with_bias(f"layers.{{}}.lru_{ours}", f"blk.{{}}.lru_{hf}", f"{BLOCK}linear_{hf}")
    ),
    Names(
        "layers.{}.lru_conv.weight",
        Stored("blk.{}.lru_conv1d.weight", transposed=True),
        Stored(f"{BLOCK}conv_1d.weight", transposed=True, between=True),
    ),
    Names("layers.{}.lru_conv.bias", "blk.{}.lru_conv1d.bias", f"{BLOCK}conv_1d.bias"),
    *(
        names
        for ours, hf in (("fade", "recurrent"), ("take", "input"))
        for names in (
            Names(
                f"layers.{{}}.lru_{ours}.weight",
                f"blk.{{}}.lru_{hf}_gate.weight",
                Stored(f"{UNIT}{hf}_gate_weight", transposed=True, inner=True),
            ),
            Names(f"layers.{{}}.lru_{ours}.bias", f"blk.{{}}.lru_{hf}_gate.bias", f"{UNIT}{hf}_gate_bias"),
        )
    ),
    Names("layers.{}.lru.decay", "blk.{}.lru_a", f"{UNIT}recurrent_param"),
)
