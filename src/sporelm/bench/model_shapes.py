"""Shapes of models, for measuring speed without their weights: what a step costs depends on these numbers alone.

The numbers are those in the config.json of the models named; llama-1b is Llama 3.2 1B with a vocabulary of 32768 and an
output matrix of its own. Those without experts run as Llama, those of Gemma as Gemma 3: the biases of Qwen 2.5 and any
scaling of the rotary base are left out. A name that ends in -4l is cut to four layers, so that a small file shows what
a layer costs.
"""

from dataclasses import dataclass, replace

EPS = 1e-5


@dataclass(frozen=True)
class ModelShape:
    """A decoder's numbers: grouped-query attention, gated MLP. `tied`: the embedding is the output matrix too.

    With `experts` each layer has that many blocks of width `ffn` instead of the MLP, and a token uses `used` of them.
    The layer is then Qwen3's, with head norms.
    """

    layers: int
    width: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    rope_theta: float
    tied: bool = False
    experts: int = 0
    used: int = 0

    @property
    def architecture(self) -> str:
        """As GGUF calls it."""
        return "qwen3moe" if self.experts else "llama"

    @property
    def suffix(self) -> str:
        """The part of the file name for numbers that not all shapes have."""
        return f"-e{self.experts}-u{self.used}" if self.experts else ""

    def metadata(self) -> dict[str, int | float | list[int]]:
        """Keys of its metadata, without the architecture."""
        found: dict[str, int | float | list[int]] = {
            "block_count": self.layers,
            "context_length": self.context,
            "embedding_length": self.width,
            "feed_forward_length": self.ffn,
            "attention.head_count": self.heads,
            "attention.head_count_kv": self.kv_heads,
            "attention.key_length": self.head_dim,
            "attention.value_length": self.head_dim,
            "rope.dimension_count": self.head_dim,
            "vocab_size": self.vocab,
        }
        if self.experts:
            found |= {"expert_count": self.experts, "expert_used_count": self.used}
            found["expert_feed_forward_length"] = self.ffn
        return found | {"attention.layer_norm_rms_epsilon": EPS, "rope.freq_base": self.rope_theta}

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """The tensors of its GGUF file, logical shapes ([out, in] for matrices) by name, in the file's order."""
        query = self.heads * self.head_dim
        key = self.kv_heads * self.head_dim
        found: dict[str, tuple[int, ...]] = {"token_embd.weight": (self.vocab, self.width)}
        for layer in range(self.layers):
            parts: dict[str, tuple[int, ...]] = {
                "attn_norm": (self.width,),
                "attn_q": (query, self.width),
                "attn_k": (key, self.width),
                "attn_v": (key, self.width),
                "attn_output": (self.width, query),
                "ffn_norm": (self.width,),
            }
            if self.experts:
                parts |= {"attn_q_norm": (self.head_dim,), "attn_k_norm": (self.head_dim,)}
                parts["ffn_gate_inp"] = (self.experts, self.width)
            each, end = ((self.experts,), "_exps") if self.experts else ((), "")
            for part in ("gate", "up"):
                parts[f"ffn_{part}{end}"] = (*each, self.ffn, self.width)
            parts[f"ffn_down{end}"] = (*each, self.width, self.ffn)
            found |= {f"blk.{layer}.{name}.weight": shape for name, shape in parts.items()}
        found["output_norm.weight"] = (self.width,)
        if not self.tied:
            found["output.weight"] = (self.vocab, self.width)
        return found


@dataclass(frozen=True)
class GemmaModelShape(ModelShape):
    """Gemma 3: QK-norm, norms after attention and after the MLP, and sliding-window attention in five of six layers.

    window  tokens that such a layer sees
    """

    window: int = 512

    @property
    def architecture(self) -> str:
        return "gemma3"

    @property
    def suffix(self) -> str:
        return f"-n{self.window}"

    def metadata(self) -> dict[str, int | float | list[int]]:
        return super().metadata() | {"attention.sliding_window": self.window}

    def tensors(self) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}
        for name, extents in super().tensors().items():
            found[name] = extents
            layer, _, part = name.rpartition(".weight")[0].rpartition(".")
            if part in ("attn_q", "attn_k"):
                found[f"{layer}.{part}_norm.weight"] = (self.head_dim,)
            if part in ("attn_output", "ffn_down"):
                norm = "post_attention_norm" if part == "attn_output" else "post_ffw_norm"
                found[f"{layer}.{norm}.weight"] = (self.width,)
        return found


@dataclass(frozen=True)
class DeltaNetModelShape(ModelShape):
    """Qwen3.5's: gated delta nets, whose heads have 128 numbers, but for one layer of gated attention in four, which
    rotates a quarter of each head."""

    key_heads: int = 16
    value_heads: int = 32

    @property
    def architecture(self) -> str:
        return "qwen35"

    @property
    def suffix(self) -> str:
        return f"-s{self.key_heads}-{self.value_heads}"

    def metadata(self) -> dict[str, int | float | list[int]]:
        ssm = {"conv_kernel": 4, "state_size": 128, "group_count": self.key_heads, "time_step_rank": self.value_heads}
        found = super().metadata() | {f"ssm.{key}": value for key, value in ssm.items()}
        found |= {"ssm.inner_size": 128 * self.value_heads, "full_attention_interval": 4}
        return found | {"rope.dimension_count": self.head_dim // 4, "rope.dimension_sections": [11, 11, 10, 0]}

    def tensors(self) -> dict[str, tuple[int, ...]]:
        channels = 256 * self.key_heads + 128 * self.value_heads
        inner = 128 * self.value_heads
        net: dict[str, tuple[int, ...]] = {
            "attn_qkv.weight": (channels, self.width),
            "attn_gate.weight": (inner, self.width),
            "ssm_conv1d.weight": (channels, 4),
            "ssm_dt.bias": (self.value_heads,),
            "ssm_a": (self.value_heads,),
            "ssm_beta.weight": (self.value_heads, self.width),
            "ssm_alpha.weight": (self.value_heads, self.width),
            "ssm_norm.weight": (128,),
            "ssm_out.weight": (self.width, inner),
        }
        found: dict[str, tuple[int, ...]] = {}
        for name, extents in super().tensors().items():
            layer, _, part = name.removeprefix("blk.").partition(".")
            if part == "attn_q.weight":
                extents = (2 * extents[0], extents[1])  # what opens and shuts it lies between
            name = name.replace("ffn_norm", "post_attention_norm")
            if not part.startswith("attn_") or part == "attn_norm.weight" or int(layer) % 4 == 3:
                found[name] = extents
            if part == "attn_norm.weight":
                norms = dict.fromkeys(("attn_q_norm.weight", "attn_k_norm.weight"), (self.head_dim,))
                found |= {f"blk.{layer}.{key}": value for key, value in (norms if int(layer) % 4 == 3 else net).items()}
        return found


@dataclass(frozen=True)
class LatentModelShape(ModelShape):
    """DeepSeek-V2's: latent attention, whose heads have 128 numbers and 64 rotated ones, and experts of width
    `expert_ffn`, two of them for every token, in all layers but the first, which has a dense block."""

    rank: int = 512
    expert_ffn: int = 1408

    @property
    def architecture(self) -> str:
        return "deepseek2"

    @property
    def suffix(self) -> str:
        return f"{super().suffix}-{self.expert_ffn}-r{self.rank}"

    def metadata(self) -> dict[str, int | float | list[int]]:
        found = super().metadata() | {"attention.key_length": self.rank + 64, "attention.value_length": self.rank}
        found |= {"attention.key_length_mla": self.head_dim, "attention.value_length_mla": self.head_dim - 64}
        found |= {"attention.kv_lora_rank": self.rank, "attention.q_lora_rank": 0, "rope.dimension_count": 64}
        found |= {"leading_dense_block_count": 1, "expert_shared_count": 2, "expert_gating_func": 1}
        return found | {"expert_feed_forward_length": self.expert_ffn, "expert_weights_scale": 1.0}

    def tensors(self) -> dict[str, tuple[int, ...]]:
        plain = replace(self, experts=0, kv_heads=self.heads)
        nope = self.head_dim - 64
        width = self.width
        ffn = self.expert_ffn
        latent: dict[str, tuple[int, ...]] = {
            "attn_kv_a_mqa.weight": (self.rank + 64, width),
            "attn_kv_a_norm.weight": (self.rank,),
            "attn_k_b.weight": (self.heads, self.rank, nope),
            "attn_v_b.weight": (self.heads, nope, self.rank),
        }
        experts: dict[str, tuple[int, ...]] = {"ffn_gate_inp.weight": (self.experts, width)}
        for end, outer, inner in (("exps", (self.experts,), ffn), ("shexp", (), 2 * ffn)):
            experts |= {f"ffn_{part}_{end}.weight": (*outer, inner, width) for part in ("gate", "up")}
            experts[f"ffn_down_{end}.weight"] = (*outer, width, inner)
        found: dict[str, tuple[int, ...]] = {}
        for name, extents in ModelShape.tensors(plain).items():
            layer, _, part = name.removeprefix("blk.").partition(".")
            if part == "attn_output.weight":
                extents = (width, self.heads * nope)
            mixed = part.startswith("ffn_") and part != "ffn_norm.weight" and layer != "0"
            if part not in ("attn_k.weight", "attn_v.weight") and not mixed:
                found[name] = extents
            if part == "attn_q.weight":
                found |= {f"blk.{layer}.{key}": value for key, value in latent.items()}
            if part == "ffn_norm.weight" and layer != "0":
                found |= {f"blk.{layer}.{key}": value for key, value in experts.items()}
        return found


DEEPSEEK_V2_LITE = LatentModelShape(27, 2048, 10_944, 16, 1, 192, 102_400, 163_840, 10_000.0, experts=64, used=6)
QWEN35_9B = DeltaNetModelShape(32, 4096, 12_288, 16, 4, 256, 248_320, 262_144, 10_000_000.0)
QWEN3_30B_A3B = ModelShape(48, 2048, 768, 32, 4, 128, 151_936, 40_960, 1_000_000.0, experts=128, used=8)

SHAPES = {
    # Large enough for a block of 256 values in every row, small enough for tests.
    "tiny": ModelShape(2, 256, 512, 4, 2, 64, 512, 2048, 10_000.0),
    "smollm2-135m": ModelShape(30, 576, 1536, 9, 3, 64, 49_152, 8192, 100_000.0, tied=True),
    "smollm2-360m": ModelShape(32, 960, 2560, 15, 5, 64, 49_152, 8192, 100_000.0, tied=True),
    "smollm2-1.7b": ModelShape(24, 2048, 8192, 32, 32, 64, 49_152, 8192, 130_000.0, tied=True),
    "gemma3-270m": GemmaModelShape(18, 640, 2048, 4, 1, 256, 262_144, 32_768, 1_000_000.0, tied=True),
    "tinyllama-1.1b": ModelShape(22, 2048, 5632, 32, 4, 64, 32_000, 2048, 10_000.0),
    "llama-1b": ModelShape(16, 2048, 8192, 32, 8, 64, 32_768, 131_072, 500_000.0),
    "llama-3b": ModelShape(28, 3072, 8192, 24, 8, 128, 128_256, 131_072, 500_000.0, tied=True),
    "llama-7b": ModelShape(32, 4096, 11_008, 32, 32, 128, 32_000, 4096, 10_000.0),
    "llama-8b": ModelShape(32, 4096, 14_336, 32, 8, 128, 128_256, 131_072, 500_000.0),
    "mistral-7b": ModelShape(32, 4096, 14_336, 32, 8, 128, 32_768, 32_768, 1_000_000.0),
    "qwen-0.5b": ModelShape(24, 896, 4864, 14, 2, 64, 151_936, 32_768, 1_000_000.0, tied=True),
    "qwen-1.5b": ModelShape(28, 1536, 8960, 12, 2, 128, 151_936, 32_768, 1_000_000.0, tied=True),
    "qwen-7b": ModelShape(28, 3584, 18_944, 28, 4, 128, 152_064, 32_768, 1_000_000.0),
    # Large enough for a choice, small enough for tests.
    "tiny-moe": ModelShape(2, 256, 256, 4, 2, 64, 512, 2048, 10_000.0, experts=6, used=2),
    "tiny-gemma3": GemmaModelShape(6, 256, 512, 2, 1, 256, 512, 2048, 1_000_000.0, tied=True),
    "tiny-delta": DeltaNetModelShape(4, 256, 256, 2, 1, 64, 512, 2048, 10_000.0, key_heads=1, value_heads=2),
    "tiny-latent": LatentModelShape(2, 256, 512, 4, 1, 192, 512, 2048, 10_000.0, False, 6, 2, rank=256, expert_ffn=256),
    "deepseek-v2-lite": DEEPSEEK_V2_LITE,
    "deepseek-v2-lite-4l": replace(DEEPSEEK_V2_LITE, layers=4),
    "qwen3.5-9b": QWEN35_9B,
    "qwen3.5-9b-4l": replace(QWEN35_9B, layers=4),
    "qwen3-30b-a3b": QWEN3_30B_A3B,
    "qwen3-30b-a3b-4l": replace(QWEN3_30B_A3B, layers=4),
}
