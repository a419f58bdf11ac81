"""Reads a model's configuration from GGUF metadata and from config.json, every value checked: files are hostile."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

import numpy as np

from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.weights.config import (
    MOST_HEAD_DIM,
    MOST_HEADS,
    MOST_LAYERS,
    MOST_VOCAB,
    MOST_WIDTH,
    Experts,
    ModelConfig,
    Scales,
    checked,
)
from sporelm.weights.family import OPTIONAL, SHAPE, Family, Field
from sporelm.weights.fields import LONGEST_NAME, Fields, shown
from sporelm.weights.hf_aliases import with_both_names
from sporelm.weights.names import GGUF, HF, Kind, Stored, stored_name, templated
from sporelm.weights.pooling import pooling_of_gguf
from sporelm.weights.rope_fields import MOST_CONTEXT, PARTIAL, rope_from_gguf, rope_from_hf
from sporelm.weights.rope_scaling import Yarn

LEAST_EPS = 9e-13  # BERT's 1e-12, as float32 has it
WINDOWED_LAYERS = "attention.sliding_window_pattern"  # in GGUF metadata: of each layer, whether it has a window
BY_LAYER = "per_layer_config"  # of config.json: keys that some layers have in place of the rest, of any class
BIASES = {"attention_bias": "attn_q", "attention_out_bias": "attn_o", "mlp_bias": "ffn_down"}
# Keys that readers have for those inside the rotary parameters of two kinds of layers, as errors name them.
_OF_WINDOWS = ("rope_local_base_freq", "local_rope_theta", "local_theta")
INNER_KEYS = {key: f"{key} (rope_theta of sliding_attention)" for key in _OF_WINDOWS}
INNER_KEYS |= {"local_share": f"{PARTIAL} of sliding_attention", "proportion": f"{PARTIAL} of full_attention"}
HEADLESS = {"heads": 1, "kv_heads": 1, "head_dim": 2, "ffn": 0}  # of models without attention
_SHAPED = {each.ours for each in SHAPE}  # what is read here by name; other fields are read as their table says


def architecture_of_gguf(metadata: Mapping[str, Any], where: str) -> str:
    """What a GGUF file calls its architecture. Raises ModelFileError if it does not say."""
    return Fields(metadata, where).text("general.architecture")


def architecture_of_hf(values: Mapping[str, Any], where: str) -> str:
    """The class that a config.json names. Raises ModelFileError if it names none."""
    named = values.get("architectures")
    if not isinstance(named, list) or not named or not isinstance(named[0], str):
        raise ModelFileError(f"{where}: architectures must name the model's class; it is {shown(named)}")
    return named[0]


def read_gguf_config(
    family: Family,
    metadata: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    where: str,
    dtype: str = "F32",
    rope_factors: Mapping[str, tuple[float, ...]] | None = None,
) -> ModelConfig:
    """The configuration in a GGUF file's metadata; `shapes` are its tensors' shapes by their names, `rope_factors` the
    values of those among them that divide rotary frequencies (`FACTOR_TENSORS`).

    Raises ModelFileError for a missing or impossible value, UnsupportedModel for an option that would change the result
    and that we lack.
    """
    architecture = architecture_of_gguf(metadata, where)
    prefix = f"{architecture}."
    own = {key.removeprefix(prefix): metadata[key] for key in metadata if key.startswith(prefix)}
    fields = Fields(family.regrouped(own), where)
    width = fields.integer("embedding_length", 1, MOST_WIDTH)
    heads = _heads_of_gguf(fields, width) if family.attends else dict(HEADLESS)
    context_length = fields.integer("context_length", 1, MOST_CONTEXT)
    found = heads | _rotary_of_gguf(family, fields, rope_factors or {}, heads["head_dim"], context_length)
    embedded = shapes.get("token_embd.weight", ())
    vocab = embedded[0] if len(embedded) == 2 else fields.integer("vocab_size", 1, MOST_VOCAB)
    held = {templated(name)[0] for name in shapes}
    for bias, weight in BIASES.items():  # of any layer: the first of a hybrid may lack what has it
        found[bias] = templated(stored_name(f"layers.0.{weight}.bias", GGUF, family.names))[0] in held
    layers = fields.integer("block_count", 1, MOST_LAYERS)
    if family.further_layers:
        layers -= fields.integer("nextn_predict_layers", 0, layers - 1, 0)
    config = ModelConfig(
        name=Fields(metadata, where).name("general.name", architecture),
        architecture=architecture,
        layers=layers,
        width=width,
        vocab=vocab,
        eps=fields.number(family.key("eps", GGUF), LEAST_EPS, 1.0),
        window=_window_of_gguf(fields) if family.key("window", GGUF) else None,
        full_layers=_full_layers_told(family, fields, layers),
        tie_embeddings="output.weight" not in shapes,
        pooling=pooling_of_gguf(fields),
        dtype=dtype,
        **{**found, **_others(family, fields, GGUF, held)},
    )
    _check_direction(family, fields, "attention.causal")
    if config.experts is not None and not config.experts.scale:  # as llama.cpp reads it
        config = replace(config, experts=replace(config.experts, scale=1.0))
    config = family.finish(config, fields, GGUF) if family.finish else config
    config = family.noticed(config, metadata, shapes) if family.noticed else config
    return checked(config, where, lambda ours: family.key(ours, GGUF))


def _heads_of_gguf(fields: Fields, width: int) -> dict[str, int]:
    """What the metadata says of heads of attention and of the feed-forward block."""
    heads = _per_layer(fields, "attention.head_count")
    head_dim = _head_dim(fields, "attention.key_length", width, heads, ("embedding_length", "attention.head_count"))
    if fields.integer("attention.value_length", 1, MOST_HEAD_DIM, head_dim) != head_dim:
        raise UnsupportedModel(
            f"{fields.where}: attention.value_length differs from the keys' {head_dim}: not supported"
        )
    kv_heads = _per_layer(fields, "attention.head_count_kv", heads)
    ffn = _per_layer(fields, "feed_forward_length", highest=MOST_WIDTH)
    return {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "ffn": ffn}


def _rotary_of_gguf(
    family: Family, fields: Fields, rope_factors: Mapping[str, tuple[float, ...]], head_dim: int, context_length: int
) -> dict[str, Any]:
    """What the metadata says of rotary positions, and of the positions that there are."""
    where = fields.where
    if family.fixed.get("rotary") == 0:
        return {"rope_theta": 0.0, "context_length": context_length}
    rotary = fields.integer("rope.dimension_count", 1, MOST_HEAD_DIM, head_dim)
    if rotary != head_dim and not family.partial_rotary:
        raise UnsupportedModel(
            f"{where}: {family.gguf}.rope.dimension_count is below the head's {head_dim}: not supported"
        )
    rope = rope_from_gguf(fields, rope_factors, _rotated(rotary, head_dim, where), context_length)
    scaling = rope.scaling
    if isinstance(scaling, Yarn):
        scaling = replace(scaling, truncate=family.yarn_truncates)
    found = {"rope_theta": rope.theta, "rope_scaling": scaling, "rotary": rotary}
    return {**found, "context_length": rope.context_length}


def read_hf_config(family: Family, values: Mapping[str, Any], where: str, dtype: str = "F32") -> ModelConfig:
    """The configuration in a Hugging Face folder's config.json; absent values have the defaults of transformers.

    Raises ModelFileError for a missing or impossible value, UnsupportedModel for an option that we lack.
    """
    architecture = architecture_of_hf(values, where)
    kind = family.class_named(architecture)
    unsaid = {family.key("eps", HF), "rope_theta"} & kind.defaults.keys()
    told = {key: value for key, value in values.items() if value is not None or key not in unsaid}
    defaults, told = (with_both_names(each, kind.model_type) for each in (kind.defaults, told))
    fields = Fields(family.reworded({**defaults, **told}), where, {**INNER_KEYS, **kind.called})
    for key, taken in family.only.items():
        given = fields.values.get(key)
        if given is None and key in fields.values and all(isinstance(each, bool) for each in taken):
            given = False  # as transformers takes a null
        if given is not None and given not in taken:
            known = ", ".join(str(value) for value in taken)
            raise UnsupportedModel(f"{where}: {fields.name_of(key)} {shown(given)} is not supported; {known} is")
    if by_layer := fields.values.get(BY_LAYER):
        raise UnsupportedModel(f"{where}: {BY_LAYER} {shown(by_layer)} is not supported for {family.gguf!r}")
    _check_direction(family, fields, "is_causal")
    keys = {ours: family.key(ours, HF) for ours in _SHAPED}
    width = fields.integer(keys["width"], 1, MOST_WIDTH)
    heads = _heads_of_hf(family, fields, keys, width) if family.attends else dict(HEADLESS)
    head_dim = heads["head_dim"]
    positions = fields.integer(family.positions, 1, MOST_CONTEXT, 2048)
    found: dict[str, Any] = {"rope_theta": 0.0, "context_length": positions}
    if family.fixed.get("rotary") != 0:
        rope = rope_from_hf(fields, head_dim, positions, partial=family.partial_rotary, gained=family.counts_gained)
        _rotated(rope.rotary, head_dim, where)
        found = {"rope_theta": rope.theta, "rope_scaling": rope.scaling, "rotary": rope.rotary}
        found["context_length"] = rope.context_length
    config = ModelConfig(
        name=fields.name("_name_or_path", architecture[:LONGEST_NAME]),
        architecture=architecture,
        layers=fields.integer(keys["layers"], 1, MOST_LAYERS),
        width=width,
        vocab=fields.integer(keys["vocab"], 1, MOST_VOCAB),
        eps=fields.number(keys["eps"], LEAST_EPS, 1.0, 1e-6),
        tie_embeddings=fields.flag("tie_word_embeddings", False),
        dtype=dtype,
        **{**heads, **found, **_others(family, fields, HF)},
    )
    _check_experts(family, fields, config)
    config = family.finish(config, fields, HF) if family.finish else config
    return checked(config, where, lambda ours: fields.name_of(family.key(ours, HF)))


def _heads_of_hf(family: Family, fields: Fields, keys: Mapping[str, str], width: int) -> dict[str, int]:
    """What a config.json says of heads of attention and of the feed-forward block."""
    heads = fields.integer(keys["heads"], 1, MOST_HEADS)
    kv_heads = fields.integer(keys["kv_heads"], 1, MOST_HEADS, heads) if keys["kv_heads"] else heads
    others = fields.name_of(keys["width"]), fields.name_of(keys["heads"])
    head_dim = _head_dim(fields, keys["head_dim"], width, heads, others)
    ffn = fields.integer(keys["ffn"], 1, MOST_WIDTH, family.ffn_widths * width or None)
    return {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "ffn": ffn}


def _check_experts(family: Family, fields: Fields, config: ModelConfig) -> None:
    """Raise ModelFileError for a 0 in config.json that GGUF files use for a missing value: the number of expert groups
    that a token selects, unless experts are not grouped, and the scale of the experts' weights."""
    experts = config.experts
    if experts is None:
        return
    groups, top_groups, scale = (family.key(f"experts.{ours}", HF) for ours in ("groups", "top_groups", "scale"))
    grouped = groups not in fields.values or bool(experts.groups)  # an absent number is the class's, one or more
    for key, value in ((top_groups, experts.top_groups or not grouped), (scale, experts.scale)):
        if key and fields.has(key) and not value:
            raise ModelFileError(f"{fields.where}: {fields.name_of(key)} is 0; it must be positive")


def _check_direction(family: Family, fields: Fields, key: str) -> None:
    """Raise UnsupportedModel for a decoder whose attention sees what follows, as embedding models made of some do, and
    for an encoder whose attention does not."""
    if fields.has(key) and (causal := fields.flag(key, True)) is family.reads:
        what = f"{key} is {str(causal).lower()}"
        raise UnsupportedModel(f"{fields.where}: {what}, which is not supported for {family.gguf!r}")


def window_of(fields: Fields, key: str, default: int | None) -> int | None:
    """Positions seen, by a config.json; null means all of them, absence the default."""
    if key not in fields.values:
        return default
    return fields.integer(key, 1, MOST_CONTEXT) if fields.has(key) else None


def _window_of_gguf(fields: Fields) -> int | None:
    """Positions seen, by GGUF metadata, where 0 means all of them."""
    return fields.integer("attention.sliding_window", 0, MOST_CONTEXT, 0) or None


def full_layers_of(fields: Fields, layers: int) -> frozenset[int]:
    """The layers that `layer_types` of a config.json leaves without a window; none where it is absent."""
    kinds = fields.values.get("layer_types")
    if kinds is None:
        return frozenset()
    known = ("full_attention", "sliding_attention")
    if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in known for kind in kinds):
        raise UnsupportedModel(f"{fields.where}: layer_types must give one of {known} for each of the {layers} layers")
    return frozenset(index for index, kind in enumerate(kinds) if kind == "full_attention")


def _full_layers_told(family: Family, fields: Fields, layers: int) -> frozenset[int]:
    """The layers that GGUF metadata leaves without a window, where it says of each if it has one; else the usual."""
    told, usual = fields.values.get(WINDOWED_LAYERS), family.full_layers(layers)
    if not family.tells_layers or told is None:
        return usual
    if type(told) is int and frozenset(range(told - 1, layers, max(told, 1))) == usual:  # a step, in older files
        return usual
    if not isinstance(told, Sequence | np.ndarray) or isinstance(told, str):
        what = f"{WINDOWED_LAYERS} is {shown(told)}"
        raise ModelFileError(f"{fields.where}: {what}; it must say of each layer whether it has a window")
    if len(told) != layers or not all(isinstance(each, bool | int | np.bool_ | np.integer) for each in told):
        what = f"{WINDOWED_LAYERS} must say it of each of the {layers} layers"
        raise ModelFileError(f"{fields.where}: {what}; it is {shown(list(told[:8]))}")
    return frozenset(layer for layer, has_one in enumerate(told) if not has_one)


def _others(family: Family, fields: Fields, kind: Kind, held: Set[str] = frozenset()) -> dict[str, Any]:
    """The values that only some families have, fixed ones and fields; those of parts as the parts that they make.

    `held` are the templates of a GGUF file's tensors.
    """
    found: dict[str, Any] = {}
    parts: dict[str, dict[str, Any]] = {"scales": {}, "experts": {}, "own": {}}
    for ours, value in family.fixed.items():
        part, _, name = ours.rpartition(".")
        (parts[part] if part else found)[name] = value
    for field in family.fields:
        key = field.gguf if kind == GGUF else field.hf
        part, _, name = field.ours.rpartition(".")
        place = parts[part] if part else found
        if field.weight and kind == GGUF:
            place[name] = _template(family, field.weight) in held
        elif field.ours not in _SHAPED and key and (name not in place or fields.has(key)):
            place[name] = _value(field, key, fields, kind)
    if parts["scales"]:
        found["scales"] = Scales(**parts["scales"])
    if parts["experts"].get("count"):
        found["experts"] = Experts(**parts["experts"])
    if family.own is not None:
        found["own"] = family.own(**parts["own"])
    return found


def _template(family: Family, ours: str) -> str:
    """What GGUF files call the weights of a template of our names."""
    named = next(names.gguf for names in family.names if names.ours == ours)
    return named.name if isinstance(named, Stored) else named


def _value(field: Field, key: str, fields: Fields, kind: Kind) -> Any:
    if field.default is OPTIONAL and not fields.has(key):
        return None
    if field.words:
        return _word(field, key, fields, kind)
    if field.kind == "bool":
        return fields.flag(key, bool(field.default))
    if field.kind == "u32":
        return fields.integer(key, int(field.low), int(field.high), field.default)
    default = None if field.default is OPTIONAL else field.default
    return fields.number(key, field.low, field.high, default)


def _word(field: Field, key: str, fields: Fields, kind: Kind) -> str:
    if kind == GGUF and field.kind == "u32":
        return field.words[fields.integer(key, 0, len(field.words) - 1, 0)] or str(field.default)
    if (word := fields.text(key, field.default)) not in field.words or not word:
        known = ", ".join(each for each in field.words if each)
        what = f"{fields.name_of(key)} {shown(word)}"
        raise UnsupportedModel(f"{fields.where}: {what} is not supported; {known} are")
    return word


def _rotated(rotary: int, head_dim: int, where: str) -> int:
    """How many numbers of a head are rotated. Raises ModelFileError for what cannot be pairs of a head's numbers."""
    if rotary > head_dim or (rotary != head_dim and rotary % 2) or rotary < 2:
        raise ModelFileError(f"{where}: {rotary} of a head's {head_dim} numbers cannot be rotated; they must be pairs")
    return rotary


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


def _head_dim(fields: Fields, key: str, width: int, heads: int, others: tuple[str, str]) -> int:
    """Numbers of a head: what the file says, else the width in equal parts; `others` are the keys of both."""
    if key and fields.has(key):
        return fields.integer(key, 2, MOST_HEAD_DIM)
    what = f"{fields.where}: width {width} is not a multiple of {heads} heads and {key or 'their width'} is missing"
    if width % heads:
        raise ModelFileError(f"{what} ({', '.join(others)})")
    if not 2 <= width // heads <= MOST_HEAD_DIM:
        what = f"{heads} heads of a width of {width} have {width // heads} numbers each; allowed: 2 to {MOST_HEAD_DIM}"
        raise ModelFileError(f"{fields.where}: {what} ({', '.join(others)})")
    return width // heads
