"""Shapes of models, for measuring speed without their weights: what a step costs depends on these numbers alone.

The numbers are those in the config.json of the models named; llama-1b is Llama 3.2 1B with a vocabulary of 32768 and an
output matrix of its own. All are run as Llama: the biases of Qwen 2.5 and any scaling of the rotary base are left out.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """A decoder's numbers: grouped-query attention, gated MLP. `tied`: the embedding is the output matrix too."""

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

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """The tensors of its GGUF file, logical shapes ([out, in] for matrices) by name, in the file's order."""
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        found: dict[str, tuple[int, ...]] = {"token_embd.weight": (self.vocab, self.width)}
        for layer in range(self.layers):
            parts = {
                "attn_norm": (self.width,),
                "attn_q": (query, self.width),
                "attn_k": (key, self.width),
                "attn_v": (key, self.width),
                "attn_output": (self.width, query),
                "ffn_norm": (self.width,),
                "ffn_gate": (self.ffn, self.width),
                "ffn_up": (self.ffn, self.width),
                "ffn_down": (self.width, self.ffn),
            }
            found |= {f"blk.{layer}.{name}.weight": shape for name, shape in parts.items()}
        found["output_norm.weight"] = (self.width,)
        if not self.tied:
            found["output.weight"] = (self.vocab, self.width)
        return found


SHAPES = {
    # Large enough for a block of 256 values in every row, small enough for tests.
    "tiny": Shape(2, 256, 512, 4, 2, 64, 512, 2048, 10_000.0),
    "smollm2-135m": Shape(30, 576, 1536, 9, 3, 64, 49_152, 8192, 100_000.0, tied=True),
    "smollm2-360m": Shape(32, 960, 2560, 15, 5, 64, 49_152, 8192, 100_000.0, tied=True),
    "smollm2-1.7b": Shape(24, 2048, 8192, 32, 32, 64, 49_152, 8192, 130_000.0, tied=True),
    "tinyllama-1.1b": Shape(22, 2048, 5632, 32, 4, 64, 32_000, 2048, 10_000.0),
    "llama-1b": Shape(16, 2048, 8192, 32, 8, 64, 32_768, 131_072, 500_000.0),
    "llama-3b": Shape(28, 3072, 8192, 24, 8, 128, 128_256, 131_072, 500_000.0, tied=True),
    "llama-7b": Shape(32, 4096, 11_008, 32, 32, 128, 32_000, 4096, 10_000.0),
    "llama-8b": Shape(32, 4096, 14_336, 32, 8, 128, 128_256, 131_072, 500_000.0),
    "mistral-7b": Shape(32, 4096, 14_336, 32, 8, 128, 32_768, 32_768, 1_000_000.0),
    "qwen-0.5b": Shape(24, 896, 4864, 14, 2, 64, 151_936, 32_768, 1_000_000.0, tied=True),
    "qwen-1.5b": Shape(28, 1536, 8960, 12, 2, 128, 151_936, 32_768, 1_000_000.0, tied=True),
    "qwen-7b": Shape(28, 3584, 18_944, 28, 4, 128, 152_064, 32_768, 1_000_000.0),
}
