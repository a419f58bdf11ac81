"""Perplexity and divergence on models whose probabilities are known."""

from math import log

import numpy as np
import pytest

from sporelm.errors import ModelFileError, RequestError
from sporelm.evals import compute_kl, compute_perplexity, cut_windows
from sporelm.text.token_windows import find_bos_token

VOCAB = 7


class ByteTokenizer:
    """One token a character; BOS is token 6."""

    def __init__(self, bos: bool) -> None:
        self.bos = bos

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]:
        assert not parse_special, "a text under test is data, not markup"
        ids = [ord(letter) % 6 for letter in text]
        return [6, *ids] if self.bos and add_special_tokens else ids


class FixedModel:
    """Gives the token that truly follows probability `right`; the others share the rest."""

    def __init__(self, right: float, bos: bool = False) -> None:
        self.tokenizer = ByteTokenizer(bos)
        self.right = right
        self.seen_ids: list[list[int]] = []

    def logits(self, ids: list[int]) -> np.ndarray:
        self.seen_ids.append(ids)
        scores = np.full((len(ids), VOCAB), log((1 - self.right) / (VOCAB - 1)), np.float32)
        scores[np.arange(len(ids) - 1), ids[1:]] = log(self.right)
        return scores + np.float32(3.0)  # a shift changes no probability


TEXT = "the quick brown fox " * 60  # 1200 tokens


def test_windows_are_those_of_llama_perplexity() -> None:
    windows = cut_windows(ByteTokenizer(bos=True), TEXT)
    assert windows.tokens == 1201
    assert [len(ids) for ids in windows.ids] == [512, 512]
    assert [ids[0] for ids in windows.ids] == [6, 6], "BOS takes the place of the first token of each"
    assert windows.scored == 2 * 255
    plain = cut_windows(ByteTokenizer(bos=False), TEXT)
    assert plain.ids[1] == tuple(ord(letter) % 6 for letter in TEXT[512:1024])


def test_begin_token() -> None:
    assert find_bos_token(ByteTokenizer(bos=True)) == 6
    assert find_bos_token(ByteTokenizer(bos=False)) is None


@pytest.mark.parametrize("bos", [True, False])
def test_perplexity_of_known_probabilities(bos: bool) -> None:
    model = FixedModel(0.25, bos)
    found = compute_perplexity(model, TEXT)
    assert found.perplexity == pytest.approx(4.0, rel=1e-6)
    assert found.error == pytest.approx(0.0, abs=1e-6)
    assert found.scored == 510
    assert [len(ids) for ids in model.seen_ids] == [512, 512]


def test_max_tokens_and_short_texts() -> None:
    assert compute_perplexity(FixedModel(0.5), TEXT, max_tokens=600).windows == 1
    with pytest.raises(RequestError, match="511 tokens are too few"):
        compute_perplexity(FixedModel(0.5), TEXT, max_tokens=511)


def test_nan_scores_are_an_error() -> None:
    model = FixedModel(0.5)
    model.logits = lambda ids: np.full((len(ids), VOCAB), np.nan, np.float32)
    with pytest.raises(ModelFileError, match="not finite"):
        compute_perplexity(model, TEXT)


def test_divergence_of_known_distributions() -> None:
    reference, model = FixedModel(0.5), FixedModel(0.25)
    found = compute_kl(model, reference, TEXT)
    expected = 0.5 * log(0.5 / 0.25) + 0.5 * log(0.5 / 0.75)
    assert found.kl == pytest.approx(expected, rel=1e-5)
    assert found.kl_max == pytest.approx(expected, rel=1e-5)
    assert found.top1_agreement == 1.0
    assert found.perplexity_ratio == pytest.approx(2.0, rel=1e-6)
    assert compute_kl(reference, reference, TEXT).kl == 0.0


def test_agreement_counts_the_likeliest_token() -> None:
    # Below 1/7 the right token is not the likeliest any more.
    assert compute_kl(FixedModel(0.05), FixedModel(0.5), TEXT).top1_agreement < 0.01
