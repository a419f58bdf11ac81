"""Names of the mixture that Gemma 4 has beside its gated block."""

from sporelm.checkpoints.experts import fused_names, fused_parts
from sporelm.checkpoints.tensor_names import Names, Table

LAYER = "model.layers.{}."
GATE_UP = f"{LAYER}experts.gate_up_proj"
# GGUF: llama.cpp's llama-arch.cpp. Hugging Face: the state dict of Gemma4ForCausalLM.
SIDE_NAMES: Table = (
    *fused_names(f"{LAYER}router.proj.weight", GATE_UP, f"{LAYER}experts.down_proj"),
    Names("layers.{}.ffn_gate_inp_norm.weight", "blk.{}.ffn_gate_inp.scale", f"{LAYER}router.scale"),
    Names("layers.{}.ffn_factors.weight", "blk.{}.ffn_down_exps.scale", f"{LAYER}router.per_expert_scale"),
    *(
        Names(
            f"layers.{{}}.ffn_{ours}_norm.weight",
            f"blk.{{}}.{gguf}.weight",
            f"{LAYER}{hf}_feedforward_layernorm_{number}.weight",
        )
        for ours, gguf, hf, number in (
            ("experts", "pre_ffw_norm_2", "pre", 2),
            ("dense_post", "post_ffw_norm_1", "post", 1),
            ("experts_post", "post_ffw_norm_2", "post", 2),
        )
    ),
)
FUSED: Table = fused_parts("blk.{}.ffn_gate_up_exps.weight")  # as llama.cpp's converter writes them
