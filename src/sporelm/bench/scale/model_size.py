"""The numbers of a model on which the cost of a step depends, from a shape, or from a model's configuration."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sporelm.bench.model_shapes import SHAPES, ModelShape
from sporelm.errors import RequestError
from sporelm.quant import FORMATS

if TYPE_CHECKING:
    from sporelm.models.config import ModelConfig

# As in the config.json of Llama 3.1 70B and 405B.
LARGE_SHAPES = {
    "llama-70b": ModelShape(80, 8192, 28_672, 64, 8, 128, 128_256, 131_072, 500_000.0),
    "llama-405b": ModelShape(126, 16_384, 53_248, 128, 8, 128, 128_256, 131_072, 500_000.0),
}
KNOWN_SHAPES = {**SHAPES, **LARGE_SHAPES}
FLOAT_TYPES = {"F32": "f32", "F16": "f16", "BF16": "f16"}


@dataclass(frozen=True)
class ModelSize:
    """A decoder of grouped-query attention and gated blocks.

    value_bytes      of a number in the matrices, scales included
    kv_value_bytes   of a number in the KV cache
    number_type      of the products, a key of `Processor.operations_per_second`
    """

    name: str
    layers: int
    width: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    value_bytes: float
    kv_value_bytes: float = 2.0
    number_type: str = "int8"
    experts: int = 0
    used_experts: int = 0

    @classmethod
    def from_shape(cls, shape: str, number_format: str, kv_value_bytes: float = 2.0) -> "ModelSize":
        """Return the size of a named shape with all matrices in one number format. Raises RequestError."""
        if shape not in KNOWN_SHAPES:
            raise RequestError(f"model: unknown shape (got {shape[:60]!r}; allowed {', '.join(KNOWN_SHAPES)}).")
        wanted = number_format.upper()
        if wanted not in FORMATS:
            known = ", ".join(name.lower() for name in FORMATS)
            raise RequestError(f"model: unknown number format (got {number_format[:60]!r}; allowed {known}).")
        each, numbers = KNOWN_SHAPES[shape], FORMATS[wanted]
        if type(each) is not ModelShape:
            raise RequestError(f"model: {shape} has layers that are not supported here (allowed: plain attention).")
        return cls(
            f"{shape}:{number_format.lower()}",
            each.layers,
            each.width,
            each.ffn,
            each.heads,
            each.kv_heads,
            each.head_dim,
            each.vocab,
            numbers.nbytes / numbers.values,
            kv_value_bytes,
            FLOAT_TYPES.get(wanted, "int8"),
            each.experts,
            each.used,
        )

    @classmethod
    def from_config(cls, config: "ModelConfig", kv_value_bytes: float = 2.0) -> "ModelSize":
        """Return the size of a model of plain layers, with all matrices in its main number format."""
        numbers = FORMATS.get(config.dtype, FORMATS["F32"])
        experts = config.experts
        return cls(
            config.name,
            config.layers,
            config.width,
            (experts.ffn if experts else 0) or config.ffn,
            config.heads,
            config.kv_heads,
            config.head_dim,
            config.vocab,
            numbers.nbytes / numbers.values,
            kv_value_bytes,
            FLOAT_TYPES.get(config.dtype, "int8"),
            experts.count if experts else 0,
            experts.used if experts else 0,
        )

    def with_kv(self, kv_value_bytes: float) -> "ModelSize":
        """Return this size with other numbers in the KV cache."""
        return replace(self, kv_value_bytes=kv_value_bytes)

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def key_width(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def attention_values(self) -> int:
        """Numbers in the four matrices of a layer's attention."""
        return 2 * self.width * (self.query_width + self.key_width)

    @property
    def ffn_values(self) -> int:
        """Numbers in the matrices of a layer's feed-forward block, all experts included."""
        return 3 * self.width * self.ffn * max(1, self.experts) + self.width * self.experts

    @property
    def used_ffn_values(self) -> int:
        """Numbers in a layer's feed-forward matrices with which a token is multiplied."""
        return 3 * self.width * self.ffn * max(1, self.used_experts) + self.width * self.experts

    @property
    def output_values(self) -> int:
        """Numbers in the output matrix."""
        return self.width * self.vocab

    @property
    def num_values(self) -> int:
        """Numbers in all matrices that a step may read, the output matrix included, the embedding not."""
        return self.layers * (self.attention_values + self.ffn_values) + self.output_values

    @property
    def weight_bytes(self) -> float:
        """Bytes of the matrices that a step may read."""
        return self.num_values * self.value_bytes

    @property
    def kv_bytes(self) -> float:
        """Bytes of the keys and values of one position in all layers."""
        return 2 * self.layers * self.key_width * self.kv_value_bytes
