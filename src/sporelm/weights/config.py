"""What a model file says about its architecture, every value checked: model files are hostile."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.weights.fields import LONGEST_NAME, Fields, shown
from sporelm.weights.rope_fields import MOST_CONTEXT, rope_from_gguf, rope_from_hf
from sporelm.weights.rope_scaling import UNSCALED, RopeScaling

# Far above any model, and small enough that no product of two of them is a surprise.
MOST_LAYERS, MOST_HEADS, MOST_HEAD_DIM = 4096, 4096, 4096
MOST_WIDTH, MOST_VOCAB = 1 << 20, 1 << 24


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a model. `dtype` names the number format of most of its weights."""

    name: str
    architecture: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    eps: float
    rope_theta: float
    context_length: int  # positions, those gained by rope scaling included
    rope_scaling: RopeScaling = UNSCALED
    window: int | None = None  # positions that a windowed layer sees, the row's own included
    full_layers: frozenset[int] = frozenset()  # layers without the window
    tie_embeddings: bool = False
    attention_bias: bool = False  # of query, key and value
    attention_out_bias: bool = False
    mlp_bias: bool = False
    dtype: str = "F32"

    def window_of(self, layer: int) -> int | None:
        """How many positions a layer's attention sees; None for all."""
        return None if layer in self.full_layers else self.window


def config_from_gguf(
    metadata: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    where: str,
    dtype: str = "F32",
    rope_factors: Mapping[str, tuple[float, ...]] | None = None,
) -> ModelConfig:
    """The configuration in a GGUF file's metadata; `shapes` are its tensors' shapes by their names, `rope_factors` the
    values of those among them that divide rotary frequencies (`FACTOR_TENSORS`).

    Keys as the GGUF specification has them. Raises ModelFileError for a missing or impossible value, UnsupportedModel
    for an option that would change the result and that we lack.
    """
    top = Fields(metadata, where)
    architecture = top.text("general.architecture")
    prefix = f"{architecture}."
    fields = Fields({key.removeprefix(prefix): metadata[key] for key in metadata if key.startswith(prefix)}, where)
    width, heads = fields.integer("embedding_length", 1, MOST_WIDTH), _per_layer(fields, "attention.head_count")
    kv_heads = _per_layer(fields, "attention.head_count_kv", heads)
    head_dim = _head_dim(fields, "attention.key_length", width, heads)
    if fields.integer("attention.value_length", 1, MOST_HEAD_DIM, head_dim) != head_dim:
        raise UnsupportedModel(
            f"{where}: {prefix}attention.value_length differs from the keys' {head_dim}: not supported"
        )
    if fields.integer("rope.dimension_count", 1, MOST_HEAD_DIM, head_dim) != head_dim:
        raise UnsupportedModel(f"{where}: {prefix}rope.dimension_count is below the head's {head_dim}: not supported")
    context_length = fields.integer("context_length", 1, MOST_CONTEXT)
    rope = rope_from_gguf(fields, rope_factors or {}, head_dim, context_length)
    embedded = shapes.get("token_embd.weight", ())
    vocab = embedded[0] if len(embedded) == 2 else fields.integer("vocab_size", 1, MOST_VOCAB)
    return _checked(
        ModelConfig(
            name=top.name("general.name", architecture),
            architecture=architecture,
            layers=fields.integer("block_count", 1, MOST_LAYERS),
            width=width,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            ffn=_per_layer(fields, "feed_forward_length", highest=MOST_WIDTH),
            vocab=vocab,
            eps=fields.number("attention.layer_norm_rms_epsilon", 1e-12, 1.0),
            rope_theta=rope.theta,
            context_length=rope.context_length,
            rope_scaling=rope.scaling,
            window=_window(fields, "attention.sliding_window", None),
            tie_embeddings="output.weight" not in shapes,
            attention_bias="blk.0.attn_q.bias" in shapes,
            attention_out_bias="blk.0.attn_output.bias" in shapes,
            mlp_bias="blk.0.ffn_down.bias" in shapes,
            dtype=dtype,
        ),
        where,
    )


def config_from_hf(values: Mapping[str, Any], where: str, dtype: str = "F32") -> ModelConfig:
    """The configuration in a Hugging Face folder's config.json; absent values have the defaults of transformers.

    Raises ModelFileError for a missing or impossible value, UnsupportedModel for an option that we lack.
    """
    fields = Fields(values, where)
    named = values.get("architectures")
    if not isinstance(named, list) or not named or not isinstance(named[0], str):
        raise ModelFileError(f"{where}: architectures must name the model's class; it is {shown(named)}")
    mistral = named[0] == "MistralForCausalLM"
    if (act := fields.text("hidden_act", "silu")) != "silu":
        raise UnsupportedModel(f"{where}: hidden_act {act!r} is not supported; silu is")
    width, heads = fields.integer("hidden_size", 1, MOST_WIDTH), fields.integer("num_attention_heads", 1, MOST_HEADS)
    layers = fields.integer("num_hidden_layers", 1, MOST_LAYERS)
    attention_bias = fields.flag("attention_bias", False)
    head_dim = _head_dim(fields, "head_dim", width, heads)
    positions = fields.integer("max_position_embeddings", 1, MOST_CONTEXT, 131072 if mistral else 2048)
    rope = rope_from_hf(fields, head_dim, positions)
    return _checked(
        ModelConfig(
            name=fields.name("_name_or_path", named[0][:LONGEST_NAME]),
            architecture=named[0],
            layers=layers,
            width=width,
            heads=heads,
            kv_heads=fields.integer("num_key_value_heads", 1, MOST_HEADS, 8 if mistral else heads),
            head_dim=head_dim,
            ffn=fields.integer("intermediate_size", 1, MOST_WIDTH),
            vocab=fields.integer("vocab_size", 1, MOST_VOCAB),
            eps=fields.number("rms_norm_eps", 1e-12, 1.0, 1e-6),
            rope_theta=rope.theta,
            context_length=rope.context_length,
            rope_scaling=rope.scaling,
            window=_window(fields, "sliding_window", 4096) if mistral else None,
            full_layers=_hf_full_layers(values.get("layer_types"), layers, where),
            tie_embeddings=fields.flag("tie_word_embeddings", False),
            attention_bias=attention_bias,
            attention_out_bias=attention_bias,
            mlp_bias=fields.flag("mlp_bias", False),
            dtype=dtype,
        ),
        where,
    )


def _checked(config: ModelConfig, where: str) -> ModelConfig:
    """The relations between values that each alone may have."""
    if config.heads % config.kv_heads:
        raise ModelFileError(f"{where}: {config.heads} query heads are no whole groups of {config.kv_heads} key heads")
    if config.head_dim % 2:
        raise UnsupportedModel(f"{where}: head dimension {config.head_dim} is odd; rotary positions need an even one")
    if config.heads * config.head_dim > MOST_WIDTH or not 1 <= config.vocab <= MOST_VOCAB:
        raise ModelFileError(
            f"{where}: {config.heads} heads of {config.head_dim}, vocabulary {config.vocab}: too large"
        )
    return config


def _per_layer(fields: Fields, key: str, default: int | None = None, highest: int = MOST_HEADS) -> int:
    """A number that GGUF files may give once or for each layer; all layers must agree."""
    value = fields.values.get(key)
    if value is not None and not isinstance(value, int | float | str | bool):
        if len(value) > MOST_LAYERS:
            raise ModelFileError(f"{fields.where}: {key} has {len(value)} values; at most {MOST_LAYERS} can be layers")
        items = value.tolist() if hasattr(value, "tolist") else list(value)
        if any(not isinstance(item, int | float | str | bool) for item in items):
            raise ModelFileError(f"{fields.where}: {key} is {shown(items)}; it must be one number for each layer")
        if not items or any(item != items[0] for item in items):
            raise UnsupportedModel(f"{fields.where}: {key} differs between layers, not supported: {shown(items)}")
        return Fields({key: items[0]}, fields.where).integer(key, 1, highest)
    return fields.integer(key, 1, highest, default)


def _head_dim(fields: Fields, key: str, width: int, heads: int) -> int:
    if not fields.has(key) and width % heads:
        raise ModelFileError(f"{fields.where}: width {width} is no multiple of {heads} heads and {key} is not given")
    return fields.integer(key, 2, MOST_HEAD_DIM, width // heads or None)


def _window(fields: Fields, key: str, default: int | None) -> int | None:
    """Positions seen; null and 0 mean all of them, absence the default."""
    if key not in fields.values:
        return default
    return fields.integer(key, 0, MOST_CONTEXT, 0) or None


def _hf_full_layers(kinds: Any, layers: int, where: str) -> frozenset[int]:
    if kinds is None:
        return frozenset()
    known = ("full_attention", "sliding_attention")
    if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in known for kind in kinds):
        raise UnsupportedModel(f"{where}: layer_types must give one of {known} for each of the {layers} layers")
    return frozenset(index for index, kind in enumerate(kinds) if kind == "full_attention")
