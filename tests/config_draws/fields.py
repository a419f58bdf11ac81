"""Legal values for the fields of a configuration class of transformers."""

from dataclasses import fields
from random import Random
from typing import Any

# Fields that describe training, generation or files, and do not change what a forward pass computes.
SKIPPED = {
    *("transformers_version", "architectures", "output_hidden_states", "return_dict", "dtype", "id2label", "label2id"),
    *("problem_type", "is_encoder_decoder", "bos_token_id", "eos_token_id", "sep_token_id", "cls_token_id"),
    *("decoder_start_token_id", "model_type", "bos_index", "eos_index", "unk_index", "quantization_config"),
    "rescale_prenorm_residual",  # transformers applies it to weights that it has loaded
    *("mask_token_id", "classifier_dropout", "initializer_range", "use_mambapy", "name_or_path"),
}
# What docs/models.md says is computed otherwise than in transformers, by model_type.
NOT_COMPARED = {"nemotron_h": {"time_step_min"}, "youtu": {"pad_token_id"}}
# Keys that goldens do without: what they say has no meaning for a forward pass.
WITHOUT_MEANING = {"use_cache", "attention_dropout", "chunk_size_feed_forward", "output_router_logits", "bos_token_id"}
WITHOUT_MEANING |= {"eos_token_id", "hidden_dropout", "router_aux_loss_coef", "router_jitter_noise", "_name_or_path"}
WITHOUT_MEANING |= {"transformers_version", "dtype", "torch_dtype", "initializer_range", "id2label", "label2id"}
ACTIVATIONS = ("silu", "gelu", "relu", "gelu_pytorch_tanh", "gelu_new", "gelu_fast", "quick_gelu", "relu2", "tanh")
HEADS = ("num_attention_heads", "num_key_value_heads", "head_dim", "hidden_size")
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx")
ROPE_KINDS = ("default", "default", "linear", "dynamic", "yarn", "llama3", "longrope")
LARGEST_DEFAULT = 4096  # of whole numbers that may be a tensor's size


def drawable(config_class: Any, base: dict[str, Any]) -> list[str]:
    """Return the names of the fields that are drawn: fields of the class, and keys of its base configuration."""
    declared = [each.name for each in fields(config_class) if not each.name.startswith("_")]
    nested = set(getattr(config_class, "sub_configs_defaults", ()))
    skipped = SKIPPED | NOT_COMPARED.get(config_class.model_type, set())
    return sorted({*declared, *base} - skipped - nested - {"rope_scaling", "rope_theta", "per_layer_config"})


def declared_types(config_class: type) -> dict[str, str]:
    """Return the declared type of each field of the class, as text."""
    return {each.name: _type_name(each.type) for each in fields(config_class)}


def default_of(config_class: type, name: str) -> Any:
    """A field's default; None where it has none."""
    for each in fields(config_class):
        if each.name == name:
            return each.default if isinstance(each.default, bool | int | float | str | None) else None
    return None


def draw_shape(random: Random, config_class: type, base: dict[str, Any]) -> dict[str, Any]:
    """Width, heads and their dimensions, drawn together so that they fit more often than not."""
    mapped = getattr(config_class, "attribute_map", {})
    heads = random.choice((1, 2, 3, 4, 5, 6, 7))
    head_dim = random.choice((2, 4, 6, 8, 10, 12, 16, 20))
    kv_heads = random.choice([each for each in (1, 2, 3, heads, None) if each is None or heads % each == 0])
    names = {"num_attention_heads": heads, "hidden_size": heads * head_dim, "num_key_value_heads": kv_heads}
    if random.random() < 0.5:
        names["head_dim"] = random.choice((head_dim, head_dim, None, 8, 10, 32))
        if names["head_dim"] is not None and random.random() < 0.5:
            names["hidden_size"] = random.choice((24, 35, 48, 62))
    known = {each.name for each in fields(config_class)} | set(base)
    found = {}
    for name, value in names.items():
        written = next((each for each in (mapped.get(name, name), name) if each in known), None)
        if written is not None:
            found[written] = value
    return found


def draw_value(random: Random, config_class: type, name: str, base: dict[str, Any]) -> Any:
    """One value for a field; transformers may still refuse it, alone or together with others."""
    declared, given = declared_types(config_class).get(name, ""), base.get(name)
    default = default_of(config_class, name)
    optional = "None" in declared or given is None
    if optional and random.random() < 0.2:
        return None
    if name == "rope_parameters":
        return draw_rope(random, config_class, base)
    if name == "layer_types":
        return _layer_types(random, base)
    if name.endswith(("_act", "activation", "activation_function", "hidden_activation")) or name == "hidden_act":
        return random.choice((*ACTIVATIONS, default or "gelu", default or "gelu"))
    if isinstance(given, dict):
        return {key: _draw_like(random, value) for key, value in given.items()}
    if isinstance(given, list):
        return _draw_like_list(random, given)
    if "bool" in declared or isinstance(given, bool) or isinstance(default, bool):
        return random.random() < 0.5
    if name in POSITIONS:
        return random.choice((64, 70, 100, 128, 2048))
    if name.endswith("pad_token_id") or name == "pad_index":
        return random.choice((0, 1, None, 5))
    if name in ("num_hidden_layers", "n_layer", "n_layers", "num_layers"):
        return random.choice((1, 2, 3, 4))
    if name == "vocab_size":
        return random.choice((131, 97, 256))
    if "float" in declared or isinstance(given, float) or isinstance(default, float):
        return _number(random, name, default, given)
    if "int" in declared or (isinstance(given, int) and given is not None) or isinstance(default, int):
        return _integer(random, name, default, given)
    if isinstance(default, str):
        return default
    return given if given is not None else default


def draw_rope(random: Random, config_class: type, base: dict[str, Any], partial: bool | None = None) -> Any:
    """Rotary parameters as transformers 5 writes them."""
    given = base.get("rope_parameters")
    if isinstance(given, dict) and given and all(isinstance(each, dict) for each in given.values()):
        return {key: _flat_rope(random, config_class, base, each) for key, each in given.items()}
    return _flat_rope(random, config_class, base, given if isinstance(given, dict) else {})


def _flat_rope(random: Random, config_class: type, base: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {key: value for key, value in given.items() if key.startswith("mrope")}
    kind = random.choice(ROPE_KINDS)
    if random.random() < 0.9:
        found["rope_theta"] = random.choice((10000.0, 10000, 500.0, 1e6, 1.5))
    if kind != "default" or random.random() < 0.8:
        found["rope_type"] = kind
    if random.random() < 0.35:
        found["partial_rotary_factor"] = random.choice((1.0, 1, 0.5, 0.25, 0.75, 0.3))
    if kind != "default":
        found["factor"] = random.choice((1.0, 2.0, 4.0, 3.5))
    if kind in ("yarn", "llama3", "longrope") and (kind == "llama3" or random.random() < 0.8):
        found["original_max_position_embeddings"] = random.choice((8, 16, 64))
    if kind == "llama3":
        found |= {"low_freq_factor": random.choice((1.0, 0.5)), "high_freq_factor": random.choice((4.0, 2))}
    if kind == "yarn":
        more = {"beta_fast": (32.0, 1.0, 16, None), "beta_slow": (1.0, 0.5, 1, None), "truncate": (True, False)}
        more |= {"attention_factor": (1.0, 0.7, None), "mscale": (1.0, 0.7, 0), "mscale_all_dim": (1.0, 0.5, 0)}
        for key, values in more.items():
            if random.random() < 0.3:
                found[key] = random.choice(values)
    if kind == "longrope":
        half = _rotary_half(config_class, base, found)
        for key in ("short_factor", "long_factor"):
            found[key] = [round(1 + random.random() * 3, 3) for _ in range(half)]
        if random.random() < 0.3:
            found["attention_factor"] = random.choice((1.0, 0.7, None))
        if random.random() < 0.3:
            del found["factor"]
    return found


def _rotary_half(config_class: type, base: dict[str, Any], rope: dict[str, Any]) -> int:
    """Pairs of a head that are rotated, as far as a few keys say it; transformers refuses a wrong guess."""
    mapped = getattr(config_class, "attribute_map", {})

    def get(name: str) -> Any:
        return base.get(mapped.get(name, name), base.get(name))

    width = get("qk_rope_head_dim") or get("head_dim")
    if not width:
        width = (get("hidden_size") or 48) // (get("num_attention_heads") or 1)
    share = rope.get("partial_rotary_factor", base.get("partial_rotary_factor")) or 1.0
    return max(1, int(width * share) // 2)


def _layer_types(random: Random, base: dict[str, Any]) -> list[str] | None:
    given = base.get("layer_types")
    layers = base.get("num_hidden_layers", 2)
    kinds = sorted(set(given)) if given else ["full_attention", "sliding_attention"]
    return [random.choice(kinds) for _ in range(layers)]


def _draw_like_list(random: Random, given: list[Any]) -> list[Any]:
    found = list(given)
    random.shuffle(found)
    return found


def _draw_like(random: Random, value: Any) -> Any:
    if isinstance(value, bool):
        return random.random() < 0.5
    if isinstance(value, float):
        return random.choice((value, 0.0, 1.0, round(value * 0.7, 4)))
    if isinstance(value, int):
        return random.choice((value, value, value + 1))
    return value


def _number(random: Random, name: str, default: Any, given: Any) -> Any:
    usual = [each for each in (default, given) if isinstance(each, int | float)]
    if "eps" in name:
        return random.choice((*usual, 1e-5, 1e-6, 1e-3, 0.01))
    if "drop" in name or "jitter" in name or "coef" in name or name.endswith("_std"):
        return random.choice((*usual, 0.0, 0.1))
    scaled = [round(each * factor, 4) for each in usual for factor in (0.5, 1.3) if each and abs(each) < 1e6]
    return random.choice((*usual, *usual, *scaled, 0.0, 1.0, 1, 0, 0.5))


def _integer(random: Random, name: str, default: Any, given: Any) -> Any:
    usual = [each for each in (default, given) if isinstance(each, int) and abs(each) <= LARGEST_DEFAULT]
    near = [max(0, given + step) for step in (-1, 1, 3)] if isinstance(given, int) else [7, 9]
    return random.choice((*usual, *near, 0, 1, 2, 3, 5))


def _type_name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)
