"""Qwen2-VL and Qwen2.5-VL, their text model: Qwen2 whose rotary positions are three, which in a text are one."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from sporelm.checkpoints.beside_vision import IMAGES, OTHERS, inner_names, text_names, text_part, without_images
from sporelm.checkpoints.family import Family, HfClass
from sporelm.checkpoints.fields import Fields, shown
from sporelm.checkpoints.tensor_names import COMMON, HF, Kind
from sporelm.errors import ModelFileError
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.families.qwen2 import windowed
from sporelm.models.registry import architecture

SECTION, TURNS = IMAGES
SECTIONS = "rope.dimension_sections"  # of GGUF files, whose fourth number is 0


@dataclass(frozen=True)
class Seeing:
    """How rows of images stand in a text (Wang et al. 2024).

    sections   of a head's pairs: how many take a row's time, its height and its width, one kind after the other, or by
               turns in Qwen3-VL. In a text all three are the position, so that a row is rotated as in other models.
    deepstack  layers whose rows of images get more of the vision tower (Meng et al. 2024); a text has none
    """

    sections: tuple[int, ...] = ()
    deepstack: int = 0


def reworded(values: dict[str, Any]) -> dict[str, Any]:
    """The text model's part of a config.json, with what rotary parameters say of images beside them."""
    return without_images(text_part(values))


def sectioned(config: ModelConfig, values: Fields, kind: Kind, usual: tuple[int, int, int]) -> ModelConfig:
    """The configuration with its sections; a folder that says none has those of transformers, if they fit."""
    half, key = config.head_dim // 2, SECTION if kind == HF else SECTIONS
    given: Any = values.values.get(key)
    told = given.tolist() if hasattr(given, "tolist") else given
    told = list(usual) if told is None and sum(usual) == half else told
    if not isinstance(told, list | tuple) or len(told) not in (3, 4) or any(told[3:]):
        raise ModelFileError(f"{values.where}: {key} is {shown(told)}; it must be three numbers of pairs")
    if any(type(each) is not int or each < 0 for each in told) or sum(told) != half:
        raise ModelFileError(f"{values.where}: {key} is {shown(told)}; it must be whole, {half} in all")
    return replace(config, own=replace(config.own, sections=tuple(told[:3])))


def told(gguf: str) -> Callable[[ModelConfig], dict[str, tuple[str, Any]]]:
    return lambda config: {f"{gguf}.{SECTIONS}": ("[i32]", [*config.own.sections, 0])}


def rotary_words(config: ModelConfig) -> dict[str, Any]:
    return {SECTION: list(config.own.sections)}


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    return sectioned(windowed(config, values, kind), values, kind, (16, 24, 24))


DEFAULTS: dict[str, Any] = {"num_key_value_heads": 8, "max_position_embeddings": 32768, "max_window_layers": 80}
DEFAULTS |= {"rms_norm_eps": 1e-5, "rope_theta": 1e6}


@architecture(
    Family(
        "qwen2vl",
        (
            HfClass("Qwen2VLForConditionalGeneration", "qwen2_vl", DEFAULTS, inner="text_config"),
            HfClass("Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl", DEFAULTS),
        ),
        names=inner_names(COMMON),
        others={HF: text_names(COMMON)},
        fixed={"attention_bias": True},
        ignored=OTHERS,
        only={"hidden_act": ("silu",), TURNS: (False,)},
        finish=_finished,
        reworded=reworded,
        said=told("qwen2vl"),
        rotary_words=rotary_words,
        windowless=True,
        own=Seeing,
    )
)
class Qwen2VL(Decoder):
    """Qwen2's layer (Wang et al. 2024; Bai et al. 2025)."""
