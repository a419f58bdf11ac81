"""Rewrites a config.json that transformers 5 saved into forms that older versions and other authors write."""

from copy import deepcopy
from random import Random
from typing import Any

FORMS = ("new", "old", "old", "omitted", "omitted", "mixed", "nulls", "alias")
KEPT = {"architectures", "model_type", "transformers_version"}


def rewritten(
    random: Random, form: str, values: dict[str, Any], defaults: dict[str, Any], mapped: dict[str, str]
) -> dict[str, Any]:
    """The configuration in a form. `defaults` are what the class has for absent keys, `mapped` its attribute_map."""
    values = deepcopy(values)
    if form == "new":
        return values
    if form == "old":
        return _drop_defaults(random, _old_rope(random, values), defaults, 0.3)
    if form == "mixed":
        return _mixed_rope(random, values)
    if form == "nulls":
        for key in sorted(values):
            if key not in KEPT and random.random() < 0.06:
                values[key] = None
        return values
    if form == "alias":
        for alias, key in sorted(mapped.items()):
            if key in values and alias not in values and random.random() < 0.5:
                values[alias] = values.pop(key)
        return values
    return _drop_any(random, _drop_defaults(random, values, defaults, 0.8))


def _drop_defaults(random: Random, values: dict[str, Any], defaults: dict[str, Any], share: float) -> dict[str, Any]:
    """Without some of the keys that say what the class takes anyway."""
    same = [key for key in sorted(values) if key not in KEPT and key in defaults and defaults[key] == values[key]]
    dropped = {key for key in same if random.random() < share}
    return {key: value for key, value in values.items() if key not in dropped}


def _drop_any(random: Random, values: dict[str, Any]) -> dict[str, Any]:
    """Without a few keys, whatever they say: transformers takes the class's default."""
    return {key: value for key, value in values.items() if key in KEPT or random.random() > 0.04}


def _old_rope(random: Random, values: dict[str, Any]) -> dict[str, Any]:
    """rope_theta and partial_rotary_factor beside rope_scaling, as transformers 4 has them."""
    rope = values.get("rope_parameters")
    if not isinstance(rope, dict) or any(isinstance(each, dict) for each in rope.values()):
        return values
    del values["rope_parameters"]
    rope = dict(rope)
    for key in ("rope_theta", "partial_rotary_factor"):
        if key in rope:
            values[key] = rope.pop(key)
    kind = rope.pop("rope_type", "default")
    if kind != "default" or rope:
        values["rope_scaling"] = {random.choice(("type", "rope_type")): kind, **rope}
    elif random.random() < 0.5:
        values["rope_scaling"] = None
    if "dtype" in values:
        values["torch_dtype"] = values.pop("dtype")
    return values


def _mixed_rope(random: Random, values: dict[str, Any]) -> dict[str, Any]:
    """Keys of both forms, which may disagree: the inner ones count."""
    rope = values.get("rope_parameters")
    if not isinstance(rope, dict) or any(isinstance(each, dict) for each in rope.values()):
        return values
    choice = random.random()
    for key, other in (("rope_theta", 777.0), ("partial_rotary_factor", 0.5)):
        if random.random() < 0.6:
            if choice < 0.5 and key in rope:
                values[key] = rope.pop(key)
            else:
                values[key] = random.choice((other, rope.get(key, other)))
    if choice > 0.8:
        values["rope_scaling"] = values.pop("rope_parameters")
    return values
