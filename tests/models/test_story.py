"""The story model (../shared/data/story): its stored values, and the 60 greedy ids that transformers gives too."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from close import assert_close
from sporelm import ops
from sporelm.checkpoints import open_model
from sporelm.checkpoints.loader import load_parameters
from sporelm.models import build
from stepping import Stepper

PROMPT = [1, 80, 147, 201, 282, 57]  # <|start_story|> "Once upon a time"
GREEDY = [
    *(313, 598, 303, 1049, 1468, 267, 628, 333, 94, 1210, 263, 251, 604, 94, 1030, 94, 1030, 94, 436, 220),
    *(1053, 615, 303, 328, 552, 319, 1269, 163, 1945, 897, 645, 1188, 108, 319, 135, 448, 563, 1799, 1380, 1067),
    *(163, 1855, 325, 825, 1896, 274, 108, 521, 1858, 204, 1803, 94, 1252, 444, 666, 309, 448, 825, 266, 243),
]
LAST_LOGITS = {313: 17.3808, 8: 13.7726, 1773: 13.7435, 404: 12.6918, 547: 11.3585}  # of the prompt's last position

# weight, flat index, value: the course project's test of its loader
STORED = [
    ("embedding.weight", 50, 0.14453125),
    ("layers.0.attn_norm.weight", 10, 0.18652344),
    ("layers.1.ffn_norm.weight", 10, 0.32421875),
    ("output_norm.weight", 100, 0.73046875),
    ("layers.0.ffn_down.weight", 100, -0.0625),
    ("layers.0.ffn_up.weight", 100, 1.46875),
    ("layers.1.ffn_gate.weight", 100, 0.296875),
    ("layers.1.attn_q.weight", 100, 0.032226563),
    ("layers.1.attn_k.weight", 100, -0.21386719),
    ("layers.0.attn_v.weight", 100, 0.041015625),
    ("layers.0.attn_o.weight", 100, 0.01965332),
]


def values(weight: Any, backend: Any) -> np.ndarray:
    """A weight's values; those of a packed matrix as its product with the unit matrix, which is exact."""
    if len(weight.shape) == 1:
        return weight.numpy()
    return ops.linear(backend.tensor(np.eye(weight.shape[1], dtype=np.float32)), weight).numpy().T


def test_stored_values(story: Path, backend: Any) -> None:
    source = open_model(story)
    weights = load_parameters(source, build(source.config).params(), backend)
    for name, index, value in STORED:
        assert_close(values(weights[name], backend).reshape(-1)[index], value, "stored")


def test_output_shares_the_embeddings_weight(story: Path, backend: Any) -> None:
    """The file stores lm_head.weight alone; it is packed once and serves both."""
    source = open_model(story)
    assert source.config.tie_embeddings
    assert "model.embed_tokens.weight" not in source.files.names
    stored = source.files.tensor("lm_head.weight").dequantize()
    weights = load_parameters(source, build(source.config).params(), backend)
    assert "output.weight" not in weights
    ids = backend.tensor(np.arange(len(stored), dtype=np.int32))
    assert_close(ops.embedding(ids, weights["embedding.weight"]).numpy(), stored, "exact")
    assert_close(values(weights["embedding.weight"], backend), stored, "exact")


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "planned"])
def test_greedy_story(story: Path, backend: Any, eager: bool, load: Callable[..., Stepper]) -> None:
    assert load(story, backend, context=128, eager=eager).greedy(PROMPT, 60) == GREEDY


def test_scores_after_the_prompt(story: Path, backend: Any, load: Callable[..., Stepper]) -> None:
    last = load(story, backend, context=64, eager=False).logits(PROMPT)[-1]
    assert_close(last[list(LAST_LOGITS)], list(LAST_LOGITS.values()), "logits")
    assert sorted(range(len(last)), key=lambda token: -last[token])[:5] == list(LAST_LOGITS)
