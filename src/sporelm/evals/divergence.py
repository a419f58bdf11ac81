"""How far one model's predictions are from another's on real text: what quantization, or a kernel, costs."""

from collections.abc import Callable
from dataclasses import dataclass
from math import exp

import numpy as np

from sporelm.evals.scoring_windows import ScoredModel, compute_log_probabilities, cut_windows

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Divergence:
    """Of a model from its reference, over the scored positions of a text."""

    kl: float  # mean, nat per token
    kl_max: float
    top1_agreement: float  # share of positions with the same likeliest token
    perplexity: float
    reference_perplexity: float
    windows: int
    scored: int

    @property
    def perplexity_ratio(self) -> float:
        return self.perplexity / self.reference_perplexity


def compute_kl(
    llm: ScoredModel,
    reference: ScoredModel,
    text: str,
    max_tokens: int | None = None,
    progress: Progress = lambda phase, done, total: None,
) -> Divergence:
    """KL(reference || llm) and its company, on the windows of the text. Both must have one vocabulary.

    Raises RequestError when the text is shorter than a window.
    """
    windows = cut_windows(reference.tokenizer, text, max_tokens)
    divergences = []
    agreements = []
    losses = []
    reference_losses = []
    for index, (ids, wanted) in enumerate(windows.targets()):
        progress("scoring", index, len(windows.ids))
        expected = compute_log_probabilities(reference, ids)
        found = compute_log_probabilities(llm, ids)
        divergences.append(np.sum(np.exp(expected) * (expected - found), axis=1))
        agreements.append(expected.argmax(axis=1) == found.argmax(axis=1))
        rows = np.arange(len(wanted))
        losses.append(-found[rows, wanted])
        reference_losses.append(-expected[rows, wanted])
    each = np.concatenate(divergences)
    return Divergence(
        kl=float(each.mean()),
        kl_max=float(each.max()),
        top1_agreement=float(np.concatenate(agreements).mean()),
        perplexity=exp(float(np.concatenate(losses).mean())),
        reference_perplexity=exp(float(np.concatenate(reference_losses).mean())),
        windows=len(windows.ids),
        scored=windows.scored,
    )
