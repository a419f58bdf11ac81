"""The choice of tokens, against a slow and plain statement of the documented order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sporelm.engine.candidates import greatest
from sporelm.engine.sampler import NOT_A_TOKEN, Choice, Sampler, Sampling, draw, shortlist
from sporelm.engine.step import Part, Step
from sporelm.errors import RequestError


def plainly(logits: np.ndarray, sampling: Sampling) -> list[int]:
    """Ids left by top-k, then top-p, then min-p, by sorting everything."""
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    if sampling.top_k:
        order = order[: sampling.top_k]
    weights = [float(np.exp(np.float64(logits[token]) - np.float64(logits[order[0]]))) for token in order]
    kept, reached = [], 0.0
    for token, weight in zip(order, weights, strict=True):
        if kept and sampling.top_p < 1 and reached >= sampling.top_p * sum(weights):
            break
        kept.append(token)
        reached += weight
    return [token for token, weight in zip(order, weights, strict=True) if token in kept and weight >= sampling.min_p]


def rows(size: int, seed: int, levels: int | None = None) -> np.ndarray:
    """Random logits; with `levels`, so few different ones that most are equal."""
    made = np.random.default_rng(seed).standard_normal(size) * 4
    return (np.round(made) % levels if levels else made).astype(np.float32)


@given(st.integers(1, 9000), st.integers(1, 300), st.integers(0, 99), st.sampled_from([None, 1, 3]))
def test_greatest_is_a_stable_sort_of_everything(size, k, seed, levels):
    logits = rows(size, seed, levels)
    assert greatest(logits, k).tolist() == np.argsort(-logits, kind="stable")[:k].tolist()


@pytest.mark.parametrize("top_k", [0, 1, 5, 40, 700, 5000])
@pytest.mark.parametrize("top_p", [0.01, 0.5, 0.95, 1.0])
@pytest.mark.parametrize("min_p", [0.0, 0.05, 0.7, 1.0])
def test_what_is_left_follows_the_documented_order(top_k, top_p, min_p):
    sampling = Sampling(temperature=0.8, top_k=top_k, top_p=top_p, min_p=min_p)
    for seed, spread in ((1, 1.0), (2, 0.1), (3, 3.0)):
        logits = rows(1000, seed) * np.float32(spread)
        found = shortlist(logits, sampling)
        everything = top_k in (0, 5000) and top_p == 1 and min_p == 0
        assert found is None if everything else found is not None and found.tolist() == plainly(logits, sampling)


def test_draws_follow_the_tempered_distribution():
    logits = np.log(np.array([0.1, 0.2, 0.7], np.float32))
    sampling = Sampling(temperature=0.5, top_k=2)
    wanted = np.array([0.2, 0.7]) ** 2
    edge = wanted[1] / wanted.sum()  # the greatest comes first
    assert draw(logits, sampling, 0.0) == 2
    assert draw(logits, sampling, edge - 1e-6) == 2
    assert draw(logits, sampling, edge + 1e-6) == 1
    assert draw(logits, sampling, 1 - 2.0**-53) == 1
    assert draw(logits, Sampling(temperature=1.0), 0.05) == 0  # all are kept: the order of ids


def test_the_same_seed_gives_the_same_tokens_and_another_one_others():
    def tokens(seed: int) -> list[int]:
        choice = Choice(Sampling(temperature=2.0, top_k=40, seed=seed), [1])
        return [choice.pick(rows(500, step)) for step in range(50)]

    assert tokens(3) == tokens(3) != tokens(4)


def test_uniform_numbers_are_pinned_and_lie_below_one():
    choice = Choice(Sampling(temperature=1.0, seed=1234), [1])
    assert [choice.uniform() for _ in range(3)] == pytest.approx(
        np.random.Generator(np.random.PCG64(1234)).random(3), abs=0
    )


def test_a_penalty_acts_on_what_was_seen_in_prompt_and_answer():
    logits = np.array([3.0, 2.9, -1.0, -1.1], np.float32)
    before = logits.copy()
    choice = Choice(Sampling(repetition_penalty=1.5), [0])
    assert [choice.pick(logits) for _ in range(2)] == [1, 0]  # 3.0 / 1.5 < 2.9; then both are divided
    low = Choice(Sampling(repetition_penalty=2.0), [0])
    assert low.pick(np.array([-1.0, -1.5], np.float32)) == 1  # a negative score is multiplied
    assert (logits == before).all()


def test_greedy_takes_the_lowest_id_among_equals():
    assert Choice(Sampling(repetition_penalty=1.1), [0]).pick(np.array([1, 5, 5, 5], np.float32)) == 1
    assert Choice(Sampling(temperature=1.0, top_k=1), [0]).pick(np.array([1, 5, 5, 5], np.float32)) == 1


@pytest.mark.parametrize(
    "options", [{}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.1}, {"top_k": 3, "top_p": 0.5, "min_p": 0.1}]
)
@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_logits_without_a_finite_best_are_no_choice(options, value):
    assert draw(np.full(100, value, np.float32), Sampling(temperature=1.0, **options), 0.3) == NOT_A_TOKEN


def test_impossible_tokens_are_never_drawn():
    logits = np.full(200, -np.inf, np.float32)
    logits[[7, 150]] = 1.0
    for options in ({}, {"top_k": 40}, {"top_p": 0.9}, {"min_p": 0.1}, {"top_k": 40, "top_p": 0.99}):
        drawn = {draw(logits, Sampling(temperature=1.0, **options), place / 100) for place in range(100)}
        assert drawn == {7, 150}


def test_a_step_of_several_requests_uses_argmax_where_it_suffices():
    sampler = Sampler()
    sampler.add(1, Sampling(), [0])
    sampler.add(2, Sampling(temperature=1.0, top_k=1), [0])
    sampler.add(3, Sampling(temperature=1.0, seed=5), [0])
    logits = rows(4 * 50, 1).reshape(4, 50)
    parts = [Part(1, [0], 0, (0,), 1), Part(9, [0], 0, (1,), 0), Part(2, [0], 0, (2,), 1), Part(3, [0], 0, (3,), 1)]
    best = np.array([11, logits[1].argmax(), NOT_A_TOKEN], np.int32)
    picked = sampler.pick(best, logits[:3], Step(parts, []))
    assert picked == [11, logits[1].argmax(), NOT_A_TOKEN]
    sampler.drop(3)
    assert set(sampler.choices) == {2}


@pytest.mark.parametrize(
    ("name", "value", "limit"),
    [
        ("temperature", -0.1, "0 to 100"),
        ("temperature", float("nan"), "0 to 100"),
        ("top_k", -1, "from 0"),
        ("top_k", 1.5, "whole number"),
        ("top_p", 0, "above 0"),
        ("top_p", 1.1, "0 to 1"),
        ("min_p", -0.1, "0 to 1"),
        ("repetition_penalty", 0, "0.01 to 100"),
        ("seed", -1, "from 0"),
        ("seed", 1 << 64, "from 0"),
        ("seed", "x", "whole number"),
    ],
)
def test_values_out_of_range_are_refused_by_name(name, value, limit):
    with pytest.raises(RequestError, match=f"{name} is .*{limit}"):
        Sampling(**{name: value})


@pytest.mark.parametrize("temperature", [1e-3, 1e-12, 1e-310, 5e-324])
@pytest.mark.parametrize("top_k", [0, 3])
def test_a_tiny_temperature_is_greedy_and_says_nothing(temperature: float, top_k: int) -> None:
    logits = np.array([1, 5, 4.5, -3, 2], np.float32)
    sampling = Sampling(temperature=temperature, top_k=top_k)
    assert {draw(logits, sampling, uniform) for uniform in (0.0, 0.5, 0.999999)} == {1}
