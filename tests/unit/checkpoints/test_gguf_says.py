"""Facts that GGUF files state by lists and by the weights that they have."""

from typing import Any

import numpy as np
import pytest

from sporelm.checkpoints import config_from_gguf
from sporelm.errors import ModelFileError
from sporelm.models.config import ModelConfig

NUMBERS = {
    "block_count": 5,
    "context_length": 256,
    "embedding_length": 48,
    "feed_forward_length": 88,
    "attention.head_count": 6,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.layer_norm_epsilon": 1e-5,
    "logit_scale": 0.5,
}


def of_gguf(architecture: str, *weights: str, **more: Any) -> ModelConfig:
    metadata = {f"{architecture}.{key.replace('__', '.')}": value for key, value in (NUMBERS | more).items()}
    shapes = {"token_embd.weight": (131, 48), **dict.fromkeys(weights, (48,))}
    return config_from_gguf({"general.architecture": architecture, **metadata}, shapes, "x.gguf")


@pytest.mark.parametrize("architecture", ["cohere2", "olmo2"])
def test_which_layers_have_a_window(architecture: str) -> None:
    usual = of_gguf(architecture, attention__sliding_window=9)
    assert [usual.window_of(layer) for layer in range(5)] == [9, 9, 9, None, 9]
    for told in ([True, False, True, True, False], np.array([1, 0, 1, 1, 0], np.bool_)):
        config = of_gguf(architecture, attention__sliding_window=9, attention__sliding_window_pattern=told)
        assert [config.window_of(layer) for layer in range(5)] == [9, None, 9, 9, None]
    for told in ([True], ["a"] * 5, [0.0] * 5, [[True]] * 5):
        with pytest.raises(ModelFileError, match="sliding_window_pattern must be a list of booleans for the 5 layers"):
            of_gguf(architecture, attention__sliding_window=9, attention__sliding_window_pattern=told)
    for told in ("x", True, 0, -1, 3, 0.5):
        with pytest.raises(ModelFileError, match="it must be a boolean for each layer"):
            of_gguf(architecture, attention__sliding_window=9, attention__sliding_window_pattern=told)
    assert of_gguf(architecture, attention__sliding_window=9, attention__sliding_window_pattern=4) == usual  # a step


def test_olmo_3_scales_positions_without_a_window_alone() -> None:
    assert of_gguf("olmo2", attention__sliding_window=9, rope__freq_base=5e5).local_theta == 5e5
    assert of_gguf("olmo2", rope__freq_base=5e5).local_theta == 0


@pytest.mark.parametrize("told", [True, False])
def test_stablelm_is_parallel_where_its_second_norm_is_missing(told: bool) -> None:
    """llama.cpp's converter wrote true for files that do not say, whose models are not."""
    assert of_gguf("stablelm", use_parallel_residual=told).parallel
    assert not of_gguf("stablelm", "blk.0.ffn_norm.weight", use_parallel_residual=told).parallel
    assert of_gguf("stablelm", "blk.0.attn_q_norm.weight").has_head_norms


def test_falcon_has_two_norms_where_there_is_a_second() -> None:
    assert of_gguf("falcon", "blk.0.attn_norm_2.weight").has_two_norms
    assert not of_gguf("falcon").has_two_norms
