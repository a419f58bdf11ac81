"""Rope scaling: logits of transformers, the same from GGUF files, and prompts of many chunks."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from available import ORDER_BY_ROWS
from close import assert_close
from sporelm.checkpoints import config_from_hf, open_model
from sporelm.models.rope_scaling import UNSCALED
from sporelm.models.rotary import frequencies
from stepping import Stepper
from tiny_files import write_gguf
from tiny_models import LONG, ROPES, SCALED, Tiny

GOLDENS = Path(__file__).parent / "goldens"
CONTEXT = 192
every_kind = pytest.mark.parametrize("tiny", ROPES, ids=lambda tiny: tiny.name)


@pytest.mark.parametrize("eager", [pytest.param(True, marks=pytest.mark.all), False], ids=["eager", "planned"])
@every_kind
def test_logits_are_those_of_transformers(
    tiny: Tiny, eager: bool, backend: Any, folder_of: Callable[[Tiny], Path], load: Callable[..., Stepper]
) -> None:
    logits = load(folder_of(tiny), backend, context=CONTEXT, eager=eager).logits(tiny.ids())
    assert_close(logits[tiny.compared_positions()], np.load(GOLDENS / f"{tiny.name}.npy"), "logits")


def test_goldens_differ() -> None:
    """The comparison would miss a scaling that does nothing, or two of them exchanged."""
    last = [np.load(GOLDENS / f"{tiny.name}.npy")[-1] for tiny in ROPES]
    for index, one in enumerate(last):
        for other in last[index + 1 :]:
            assert np.abs(one - other).max() > 0.05


def llama3_divisors() -> np.ndarray:
    """float32 [8]: what llama.cpp's converter writes as rope_freqs.weight for the configuration of rope-llama3."""
    (tiny,) = (tiny for tiny in ROPES if tiny.name == "rope-llama3")
    config = config_from_hf(tiny.config, "c")
    plain, scaled = (frequencies(CONTEXT, 16, 1e4, scaling) for scaling in (UNSCALED, config.rope_scaling))
    return (plain / scaled).astype(np.float32)


LONG_TENSORS = {
    f"rope_factors_{kind}.weight": np.float32(LONG[f"{kind}_factor"]) for kind in ("short", "long")
}  # fmt: skip
ORIGINAL = {"llama.rope.scaling.original_context_length": 64}
YARN = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0} | ORIGINAL
# Name of the tiny model -> tensors and metadata of a GGUF file that says the same.
GGUF: dict[str, tuple[dict[str, np.ndarray], dict[str, Any]]] = {
    "rope-linear": ({}, {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.5}),
    "rope-linear-of-old": ({}, {"llama.rope.scale_linear": 2.5}),
    "rope-yarn": ({}, YARN),
    "rope-yarn-attention": ({}, YARN | {"llama.rope.scaling.yarn_attn_factor": 0.8}),
    "rope-llama3": ({"rope_freqs.weight": llama3_divisors()}, {}),
    "rope-longrope": (
        LONG_TENSORS,
        {"llama.rope.scaling.type": "longrope", "llama.rope.scaling.attn_factor": float(np.sqrt(4 / 3))} | ORIGINAL,
    ),
}


@pytest.mark.parametrize("name", GGUF)
def test_gguf_is_the_folder(
    name: str, backend: Any, tmp_path: Path, folder_of: Callable[[Tiny], Path], load: Callable[..., Stepper]
) -> None:
    tensors, metadata = GGUF[name]
    (tiny,) = (tiny for tiny in ROPES if name.startswith(tiny.name) and len(name) - len(tiny.name) in (0, 7))
    path = write_gguf(tmp_path / "tiny.gguf", tiny, tensors, more=metadata)
    of_gguf = load(path, backend, context=CONTEXT, eager=False).logits(tiny.ids())
    assert_close(of_gguf[tiny.compared_positions()], np.load(GOLDENS / f"{tiny.name}.npy"), "logits")
    assert_close(of_gguf, load(folder_of(tiny), backend, context=CONTEXT, eager=False).logits(tiny.ids()), "f32")


def test_divisors_and_scaling_of_a_file_work_together(tmp_path: Path) -> None:
    divisors = np.float32([1, 1, 2, 2, 4, 4, 8, 8])
    path = write_gguf(tmp_path / "tiny.gguf", ROPES[0], {"rope_freqs.weight": divisors}, more=YARN)
    config = open_model(path).config
    alone = open_model(write_gguf(tmp_path / "alone.gguf", ROPES[0], more=YARN)).config
    both, one = (frequencies(CONTEXT, 16, 1e4, found.rope_scaling) for found in (config, alone))
    assert_close(both, one / divisors, "stored")
    assert config.rope_scaling.attention == alone.rope_scaling.attention > 1


def test_a_long_prompt_in_chunks(backend: Any, folder_of: Callable[[Tiny], Path], load: Callable[..., Stepper]) -> None:
    """Far beyond the original context, the chunks of a prompt give what the largest chunks give."""
    length = 900 if backend.name in ORDER_BY_ROWS else 20_000  # they would take minutes
    scaling = {"rope_type": "yarn", "factor": 64.0, "original_max_position_embeddings": 512}
    config = SCALED | {"num_hidden_layers": 1, "num_attention_heads": 1, "head_dim": 16, "rope_scaling": scaling}
    tiny = Tiny("rope-long", config, 41, length)
    assert config_from_hf(config, "c").context_length == 64 * 512
    ends = []
    for chunk in (None, 211):
        runner = load(folder_of(replace(tiny, name=f"{tiny.name}-{length}")), backend, context=length, eager=False)
        ends.append(runner.logits(tiny.ids(), chunk=chunk)[-300:])
        runner.close()
    assert_close(ends[1], ends[0], "f32" if backend.name in ORDER_BY_ROWS else "exact")
