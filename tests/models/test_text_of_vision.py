"""Folders of models that see as well: their text model runs, what sees and what guesses ahead is left unread."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from available import opened
from close import assert_close
from families import CASES, write_case
from sporelm.errors import UnsupportedModel
from sporelm.models import config_from_hf
from sporelm.weights.rope_scaling import UNSCALED
from stepping import Stepper

BY_NAME = {case.name: case for case in CASES}


@pytest.mark.parametrize(
    ("name", "architecture", "old"),
    [
        ("qwen35", "Qwen3_5ForConditionalGeneration", False),
        ("qwen35moe-odd-tied", "Qwen3_5MoeForConditionalGeneration", False),
        ("gemma3", "Gemma3ForConditionalGeneration", True),
        ("gemma4", "Gemma4ForConditionalGeneration", False),
        ("ministral3-odd-tied", "Mistral3ForConditionalGeneration", False),
        ("ministral3", "Mistral3ForConditionalGeneration", True),
        ("llama4", "Llama4ForConditionalGeneration", True),
    ],
)
def test_text_of_a_model_that_sees(
    name: str, architecture: str, old: bool, load: Callable[..., Stepper], tmp_path: Path
) -> None:
    """`old`: under the names that transformers 4 wrote."""
    case = BY_NAME[name]
    plain, inner = write_case(tmp_path / "plain", case), dict(case.config)
    if "partial_rotary_factor" in inner:
        inner["rope_parameters"] = {"rope_theta": 10000.0, "mrope_section": [1, 1, 0]}
        inner["rope_parameters"]["partial_rotary_factor"] = inner.pop("partial_rotary_factor")
    tied = inner.pop("tie_word_embeddings")
    outer = {"architectures": [architecture], "text_config": inner, "vision_config": {"depth": 2}}
    place = tmp_path / "seeing"
    place.mkdir()
    (place / "config.json").write_text(json.dumps({**outer, "tie_word_embeddings": tied}))
    tensors = {
        f"language_model.{key}" if old else key.replace("model.", "model.language_model.", 1): values
        for key, values in case.tensors().items()
    }
    unread = ["model.visual.blocks.0.attn.qkv.weight", "vision_tower.vision_model.post_layernorm.weight"]
    if name == "llama4":
        unread = ["vision_model.layernorm_post.weight", "multi_modal_projector.linear_1.weight"]
    if name.startswith("qwen"):
        unread += ["mtp.layers.0.mlp.experts.3.up_proj.weight", "mtp.norm.weight"]
    save_file(tensors | dict.fromkeys(unread, np.ones((2, 3), np.float32)), place / "model.safetensors")
    cpu = opened("cpu", threads=1)
    runners = [load(folder, cpu, context=64, eager=True) for folder in (plain, place)]
    wanted, found = (runner.step([(0, case.ids()[:9])])["logits"] for runner in runners)
    assert_close(found, wanted, "exact")
    for runner in runners:
        runner.close()
    cpu.close()


def test_text_of_mistral_small() -> None:
    """The Mistral of transformers, whose window is 4096 where it is not said to be none."""
    text = {**BY_NAME["llama"].config, "model_type": "mistral", "rope_theta": 1e9, "sliding_window": None}
    outer = {"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3"}
    config = config_from_hf({**outer, "text_config": text}, "config.json")
    assert (config.rope_theta, config.rope_scaling, config.own.beta) == (1e9, UNSCALED, 0)
    del text["sliding_window"]
    with pytest.raises(UnsupportedModel, match="sliding_window 4096 is not supported"):
        config_from_hf({**outer, "text_config": text}, "config.json")


def test_an_output_of_its_own_is_heeded(load: Callable[..., Stepper], tmp_path: Path) -> None:
    """Gemma 3's class ties the output, and config.json does not say it; but a folder with both has both."""
    case = replace(BY_NAME["gemma3"], config=BY_NAME["gemma3"].config | {"tie_word_embeddings": False})
    place = write_case(tmp_path / "model", case)
    cpu = opened("cpu", threads=1)
    wanted = load(place, cpu, context=64, eager=True)
    (place / "config.json").write_text(json.dumps({k: v for k, v in case.config.items() if k != "tie_word_embeddings"}))
    found = load(place, cpu, context=64, eager=True)
    assert not found.model.config.tie_embeddings
    logits = [runner.step([(0, case.ids()[:9])])["logits"] for runner in (wanted, found)]
    assert_close(logits[1], logits[0], "exact")
    for runner in (wanted, found):
        runner.close()
    cpu.close()
