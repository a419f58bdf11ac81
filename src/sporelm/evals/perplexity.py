"""Perplexity of a text under a model, comparable with llama-perplexity."""

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, sqrt

import numpy as np

from sporelm.errors import ModelFileError
from sporelm.evals.scoring_windows import ScoredModel, compute_log_probabilities, cut_windows

Progress = Callable[[str, int, int], None]  # phase, windows done, windows in all


@dataclass(frozen=True)
class Perplexity:
    """exp of the mean negative log-likelihood, its standard error, and over what it was taken."""

    perplexity: float
    error: float
    nll: float  # nat per token
    windows: int
    scored: int
    tokens: int


def compute_perplexity(
    llm: ScoredModel, text: str, max_tokens: int | None = None, progress: Progress = lambda phase, done, total: None
) -> Perplexity:
    """Score the second half of every window. Raises RequestError when the text is shorter than a window."""
    windows = cut_windows(llm.tokenizer, text, max_tokens)
    losses = []
    for index, (ids, wanted) in enumerate(windows.targets()):
        progress("scoring", index, len(windows.ids))
        found = compute_log_probabilities(llm, ids)
        losses.append(-found[np.arange(len(wanted)), wanted])
    nll = np.concatenate(losses)
    mean = float(nll.mean())
    if not np.isfinite(mean):
        raise ModelFileError("the model's scores are not finite numbers: its weights or the kernels are at fault")
    error = sqrt(float(nll.var()) / max(1, len(nll) - 1)) * exp(mean)
    return Perplexity(exp(mean), error, mean, len(windows.ids), windows.scored, windows.tokens)
