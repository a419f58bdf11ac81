"""North-Micro, the text model of Cohere Compass: Command-R7B's layer, its heads rotated by halves, each kind of layers
with a rotary base of its own, or none."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sporelm.checkpoints.beside_vision import IMAGES, OTHERS, text_names, text_part
from sporelm.checkpoints.config_files import WINDOWED_LAYERS, full_layers_of, window_of
from sporelm.checkpoints.family import Family, Field, HfClass, fields
from sporelm.checkpoints.fields import Fields, shown
from sporelm.checkpoints.rope_fields import MOST_THETA
from sporelm.checkpoints.tensor_names import COMMON, HF, Kind
from sporelm.errors import UnsupportedModel
from sporelm.models.config import ModelConfig
from sporelm.models.families.cohere import DEFAULTS, FIELDS
from sporelm.models.families.cohere2 import Cohere2
from sporelm.models.families.layer_kinds import ROTATED, rotation_marks
from sporelm.models.registry import architecture

KINDS = ("full_attention", "sliding_attention")
NUMBERS: dict[str, Any] = DEFAULTS | {"logit_scale": 1.0}
FLAGS = (("attention_bias", "attention_bias"), ("sliding_window", "window"))
KNOWN = {"rope_type", "rope_theta", *IMAGES}  # of rotary parameters; what they say of images is none of a text's
BASES = "rope_bases"  # ours: of each kind that has them


def _reworded(values: dict[str, Any]) -> dict[str, Any]:
    """The base of each kind of layers, 0 for one that is not rotated. Raises UnsupportedModel for other parameters."""
    values = text_part(values)
    told, bases = values.get("rope_parameters"), dict[str, Any]()
    found = {kind: told[kind] for kind in KINDS if kind in told} if isinstance(told, Mapping) else {}
    for kind, own in found.items():
        plain = isinstance(own, Mapping) and own.keys() <= KNOWN and own.get("rope_type", "default") == "default"
        if own is not None and not plain:
            raise UnsupportedModel(f"config.json: rope_parameters of {kind} are {shown(own)}, which is not supported")
        bases[kind] = 0 if own is None else own.get("rope_theta", values.get("rope_theta", 1e4))
    return {**values, BASES: bases, "rope_parameters": None, "rope_theta": next(filter(None, bases.values()), 1e4)}


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    """Which layers have a window, and which are rotated, by which base. Raises UnsupportedModel if nobody says it."""
    layers = range(config.layers)
    if kind != HF:
        marks = rotation_marks(values, ROTATED, config.layers)
        return replace(config, nope_layers=frozenset(layer for layer in layers if not marks[layer]))
    full = full_layers_of(values, config.layers) if values.has("layer_types") else frozenset(layers)
    window = window_of(values, "sliding_window", 4096) if len(full) < config.layers else None
    kinds, bases = [KINDS[layer not in full] for layer in layers], Fields(values.values[BASES], values.where)
    if missing := [each for each in KINDS if each in kinds and each not in bases.values]:
        raise UnsupportedModel(f"{values.where}: rope_parameters say nothing of {missing[0]}, which is not supported")
    if window is None and KINDS[1] in kinds:
        raise UnsupportedModel(f"{values.where}: layers are {KINDS[1]}, but sliding_window is null: not supported")
    local = bases.number(KINDS[1], 0, MOST_THETA, 0.0)
    return replace(
        config,
        window=window,
        full_layers=full if window else frozenset(),
        nope_layers=frozenset(layer for layer in layers if not bases.values[kinds[layer]]),
        local_theta=local if window and local != config.rope_theta else 0.0,
    )


def _words(config: ModelConfig) -> dict[str, Any]:
    kinds = [KINDS[config.window_of(layer) is not None] for layer in range(config.layers)]
    bases = dict(zip(KINDS, (config.rope_theta, config.local_theta or config.rope_theta), strict=True))
    bare = {kind for layer, kind in enumerate(kinds) if layer in config.nope_layers}
    turns = {kind: None if kind in bare else {"rope_type": "default", "rope_theta": bases[kind]} for kind in {*kinds}}
    return {"layer_types": kinds, "rope_parameters": turns}


def _said(config: ModelConfig) -> dict[str, tuple[str, Any]]:
    layers = range(config.layers)
    found = {WINDOWED_LAYERS: [config.window_of(layer) is not None for layer in layers]}
    found[ROTATED] = [layer not in config.nope_layers for layer in layers]
    return {f"cohere_compass_text.{key}": ("[bool]", each) for key, each in found.items()}


@architecture(
    Family(
        "cohere_compass_text",
        (
            HfClass("CohereCompassForCausalLM", "cohere_compass_text", NUMBERS, FLAGS),
            HfClass(
                "CohereCompassForConditionalGeneration",
                "cohere_compass",
                NUMBERS | {"tie_word_embeddings": False},
                FLAGS,
            ),
        ),
        fields(
            *FIELDS,
            Field("head_dim", "attention.key_length", "u32", ""),
            Field("local_theta", "rope.freq_base_swa", "f32", "", 0.0, MOST_THETA, 0.0),
        ),
        COMMON,
        others={HF: text_names(COMMON)},
        ignored=OTHERS,
        fixed={"parallel": True},
        finish=_finished,
        reworded=_reworded,
        said=_said,
        words=_words,
        tells_layers=True,
    )
)
class CohereCompass(Cohere2):
    """The layer of Command-R7B (Cohere 2026)."""
