"""The choice of tokens, against a slow and plain statement of the documented order."""

from collections import Counter
from collections.abc import Sequence
from math import exp, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sporelm.engine.model_output import ModelOutput
from sporelm.engine.sampling import NOT_A_TOKEN, Sampler, Sampling
from sporelm.engine.sampling.candidates import top_k_ids
from sporelm.engine.sampling.filters import apply_filters
from sporelm.engine.sampling.logits_processors import DryPenalty, match_lengths
from sporelm.engine.sampling.sampler import (
    SamplerState,
    find_candidates,
    num_first_candidates,
    sample_rows,
    token_logprobs,
)
from sporelm.engine.step import ScheduledSequence, Step
from sporelm.errors import RequestError


def plainly(logits: Sequence[float], sampling: Sampling, coin: float = 1.0) -> list[int]:
    """Ids left by top-k, typical-p, top-p, min-p and XTC, by sorting everything."""
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    if sampling.top_k:
        order = order[: sampling.top_k]
    weight = {token: exp(float(logits[token]) - float(logits[order[0]])) for token in order}
    if sampling.typical_p < 1:
        total = sum(weight[token] for token in order)
        logs = {token: log(weight[token] / total) for token in order}
        expected = -sum(exp(each) * each for each in logs.values())
        nearest = sorted(order, key=lambda token: abs(-logs[token] - expected))
        taken = until(nearest, weight, sampling.typical_p)
        order = [token for token in order if token in taken]
    if sampling.top_p < 1:
        order = until(order, weight, sampling.top_p)
    order = [token for token in order if weight[token] >= sampling.min_p * weight[order[0]]]
    if coin < sampling.xtc_probability:
        total = sum(weight[token] for token in order)
        above = [token for token in order if weight[token] / total >= sampling.xtc_threshold]
        order = [token for token in order if token not in above[:-1]]
    return order


def until(order: list[int], weight: dict[int, float], share: float) -> list[int]:
    """The first of `order` whose weights reach a share of all; at least one."""
    kept, reached, total = list[int](), 0.0, sum(weight[token] for token in order)
    for token in order:
        if kept and reached >= share * total:
            break
        kept.append(token)
        reached += weight[token]
    return kept


def rows(size: int, seed: int, levels: int | None = None) -> np.ndarray:
    """Random logits; with `levels`, so few different ones that most are equal."""
    made = np.random.default_rng(seed).standard_normal(size) * 4
    return (np.round(made) % levels if levels else made).astype(np.float32)


def kept_of(logits: np.ndarray, sampling: Sampling, coin: float = 1.0) -> list[int] | None:
    """Return the ids that the vectorised filters keep of one row; None for all of them."""
    count = num_first_candidates(sampling, len(logits))
    if count == 0:
        return None
    while True:
        found, suffices = find_candidates(logits[None], [sampling], count)
        if suffices[0]:
            return found.ids[0][apply_filters(found, [sampling], [coin])[0]].tolist()
        count = min(4 * count, len(logits))


def pick(logits: np.ndarray, choice: SamplerState) -> int:
    token = sample_rows(logits[None].copy(), [choice])[0]
    choice.accept(token)
    return token


def choice(prompt: Sequence[int] = (0,), stop_ids: Sequence[int] = (), **options: object) -> SamplerState:
    return SamplerState(Sampling(**options), prompt, stop_ids, 1 << 20)


@given(st.integers(1, 3), st.integers(1, 9000), st.integers(1, 300), st.integers(0, 99), st.sampled_from([None, 1, 3]))
def test_greatest_is_a_stable_sort_of_everything(count, size, k, seed, levels):
    logits = np.stack([rows(size, seed + row, levels) for row in range(count)])
    assert top_k_ids(logits, k).tolist() == np.argsort(-logits, axis=1, kind="stable")[:, :k].tolist()


def test_greatest_orders_zeros_and_infinities_as_numbers():
    logits = np.full(5000, -np.inf, np.float32)
    logits[[4000, 70, 3000]] = [0.0, -0.0, 5.0]
    assert top_k_ids(logits[None], 5)[0].tolist() == [3000, 70, 4000, 0, 1]


@pytest.mark.parametrize("size", [64 * 40, 64 * 40 + 17, 70_003])
@pytest.mark.parametrize("possible", [0, 1, 7, 30, 60, 2000])
def test_greatest_of_masked_rows(size, possible):
    """Of so large a row values are picked out of columns."""
    logits = np.full((2, size), -np.inf, np.float32)
    random = np.random.default_rng(possible)
    for row in logits:
        row[random.permutation(size)[:possible]] = np.round(random.standard_normal(possible) * 3)
    assert top_k_ids(logits, 20).tolist() == np.argsort(-logits, axis=1, kind="stable")[:, :20].tolist()


@pytest.mark.parametrize("top_k", [0, 1, 5, 40, 700])
@pytest.mark.parametrize("top_p", [0.01, 0.5, 0.95, 1.0])
@pytest.mark.parametrize("min_p", [0.0, 0.05, 0.7, 1.0])
@pytest.mark.parametrize("more", [{}, {"typical_p": 0.6}, {"xtc_probability": 0.5, "xtc_threshold": 0.05}], ids=str)
def test_what_is_left_follows_the_documented_order(top_k, top_p, min_p, more):
    sampling = Sampling(temperature=0.8, top_k=top_k, top_p=top_p, min_p=min_p, **more)
    for seed, spread in ((1, 1.0), (2, 0.1), (3, 3.0)):
        logits = rows(1000, seed) * np.float32(spread)
        found = kept_of(logits, sampling, 0.4)
        everything = (top_k, top_p, min_p, more) == (0, 1, 0, {})
        assert found is None if everything else found == plainly(logits.tolist(), sampling, 0.4)


def test_draws_follow_the_tempered_distribution():
    logits = np.log(np.array([0.1, 0.2, 0.7], np.float32))
    wanted = {(2, 0.5): [0, 0.2**2, 0.7**2], (0, 1.0): [0.1, 0.2, 0.7], (0, 0.5): [0.1**2, 0.2**2, 0.7**2]}
    for (top_k, temperature), weights in wanted.items():
        chooser = choice(temperature=temperature, top_k=top_k, seed=7)
        count = 4000
        found = Counter(pick(logits, chooser) for _ in range(count))
        for token, weight in enumerate(weights):
            share = weight / sum(weights)
            assert abs(found[token] / count - share) < 4 * (share * (1 - share) / count) ** 0.5 + 1e-12


OPTIONS = [
    {"top_k": 40},
    {"top_k": 3, "top_p": 0.9},
    {"top_p": 0.9},
    {"top_p": 0.99999},
    {"min_p": 0.01},
    {},
    {"typical_p": 0.7},
    {"top_k": 40, "xtc_probability": 0.5, "xtc_threshold": 0.05},
    {"mirostat": 1},
    {"mirostat": 2},
    {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2},
    {"dry_multiplier": 0.8},
    {"logit_bias": {5: 30.0}},
]


def test_the_company_in_a_step_changes_nothing():
    def tokens(of: Sequence[int]) -> list[list[int]]:
        choices = [choice(range(30), temperature=1.5, seed=9 + number, **OPTIONS[number]) for number in of]
        said = []
        for step in range(12):
            logits = np.stack([rows(3000, 100 * step + number) for number in of])
            said.append(sample_rows(logits, choices))
            for each, token in zip(choices, said[-1], strict=True):
                each.accept(token)
        return [list(column) for column in zip(*said, strict=True)]

    together = tokens(range(len(OPTIONS)))
    assert together == [tokens([number])[0] for number in range(len(OPTIONS))]
    assert len({tuple(column) for column in together}) > len(OPTIONS) // 2


def test_the_same_seed_gives_the_same_tokens_and_another_one_others():
    def tokens(seed: int) -> list[int]:
        chooser = choice(temperature=2.0, top_k=40, seed=seed)
        return [pick(rows(500, step), chooser) for step in range(50)]

    assert tokens(3) == tokens(3) != tokens(4)


def test_uniform_numbers_are_pinned_and_lie_below_one():
    chooser = choice(temperature=1.0, seed=1234)
    wanted = np.random.Generator(np.random.PCG64(1234)).random(3)
    assert [chooser.next_uniform() for _ in range(3)] == pytest.approx(wanted, abs=0)


def test_a_penalty_acts_on_what_was_seen_in_prompt_and_answer():
    logits = np.array([3.0, 2.9, -1.0, -1.1], np.float32)
    chooser = choice(repetition_penalty=1.5)
    assert [pick(logits, chooser) for _ in range(2)] == [1, 0]  # 3.0 / 1.5 < 2.9; then both are divided
    low = choice(repetition_penalty=2.0)
    assert pick(np.array([-1.0, -1.5], np.float32), low) == 1  # a negative score is multiplied


def test_presence_and_frequency_count_the_answer_alone():
    logits = np.array([3.0, 2.5, 0.0], np.float32)
    assert [pick(logits, chooser) for chooser in [choice([0, 0], presence_penalty=1.0)] for _ in range(3)] == [0, 1, 0]
    often = choice([1], frequency_penalty=0.3)
    assert [pick(logits, often) for _ in range(6)] == [0, 0, 1, 0, 1, 0]


def test_a_bias_is_added_and_the_ends_wait():
    logits = np.array([1.0, 2.0, 3.0], np.float32)
    assert pick(logits, SamplerState(Sampling(logit_bias={0: 5.0, 9: 100.0}), [0], (), 3)) == 0
    patient = choice(stop_ids=[2], min_tokens=2)
    assert [pick(logits, patient) for _ in range(3)] == [1, 1, 2]


def longest_repetition(text: Sequence[int], token: int, breakers: set[int]) -> int:
    """How long the end of `text` is that stood before `token` once already, without a breaker."""
    found = 0
    for place in range(len(text) - 1):
        if text[place + 1] != token:
            continue
        length = 0
        while length <= place and text[place - length] == text[-1 - length] and text[place - length] not in breakers:
            length += 1
        found = max(found, length)
    return found


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 4), st.booleans())
def test_dry_takes_more_the_longer_a_repetition_is(text, allowed, breaks):
    breakers = {3} if breaks else set[int]()
    options = {
        "dry_multiplier": 0.5,
        "dry_base": 2.0,
        "dry_allowed_length": allowed,
        "dry_breakers": frozenset(breakers),
    }
    begun = SamplerState(Sampling(**options), text[: len(text) // 2], (), 6)
    for token in text[len(text) // 2 :]:
        begun.accept(token)
    logits = np.zeros(6, np.float32)
    begun.processors[0].apply(logits)
    for token in range(6):
        length = 0 if token in breakers else longest_repetition(text, token, breakers)
        wanted = 0.5 * 2.0 ** (length - allowed) if length >= allowed else 0.0
        assert logits[token] == pytest.approx(-wanted, rel=1e-6)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(0, 20), st.booleans())
def test_dry_knows_of_a_prompt_what_it_would_have_learnt_token_by_token(text, dry_range, breaks):
    options = {"dry_multiplier": 0.5, "dry_range": dry_range, "dry_breakers": frozenset({3} if breaks else ())}
    sampling = Sampling(**options)
    seen = text[-dry_range:]
    slowly = DryPenalty(sampling, seen[:1])
    for token in seen[1:]:
        slowly.accept(token)
    assert match_lengths(seen, sampling.dry_breakers).tolist() == slowly.runs[: slowly.length].tolist()
    assert DryPenalty(sampling, text).length == len(seen)


def test_dry_looks_no_further_back_than_it_is_told():
    text = [1, 2, 3, 4, 1, 2, 3]
    for reach, penalty in ((0, -4.0), (7, -4.0), (6, -2.0), (4, 0.0)):
        logits = np.zeros(6, np.float32)
        chooser = choice(text, dry_multiplier=1.0, dry_base=2.0, dry_allowed_length=1, dry_range=reach)
        chooser.processors[0].apply(logits)
        assert (reach, logits[4]) == (reach, penalty)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("tau", [2.0, 4.0, 6.0])
def test_mirostat_keeps_the_mean_surprise_near_its_target(version, tau):
    logits = np.log(1 / np.arange(1, 5001)).astype(np.float32)
    chooser = choice(temperature=1.0, mirostat=version, mirostat_tau=tau, mirostat_eta=0.1, seed=5)
    assert chooser.mirostat is not None
    limits = []
    for _ in range(800):
        pick(logits, chooser)
        limits.append(chooser.mirostat.mu)
    # Were the surprises' mean not tau, mu would wander off.
    assert abs(np.mean(limits[200:400]) - np.mean(limits[600:])) < 0.5
    assert max(limits[200:]) - min(limits[200:]) < tau + 2


def test_mirostat_draws_among_what_surprises_little_enough():
    logits = rows(300, 4)
    exact = np.exp(logits.astype(np.float64) / 0.7)
    order = np.argsort(-exact, kind="stable")
    shares = (exact / exact.sum())[order]
    chooser, uniforms = (choice(temperature=0.7, mirostat=2, mirostat_tau=2.0, seed=6) for _ in range(2))
    mu = 4.0
    for _ in range(50):
        kept = shares[-np.log2(shares) <= mu] if -np.log2(shares[0]) <= mu else shares[:1]
        kept = kept / kept.sum()
        place = int(np.searchsorted(np.cumsum(kept), uniforms.next_uniform(), side="right"))
        assert pick(logits, chooser) == order[place]
        mu -= 0.1 * (-np.log2(kept[place]) - 2.0)


def test_the_first_mirostat_keeps_as_many_as_its_paper_says():
    """Equations 6 and 7 of Basu et al., 2021, over the hundred likeliest, as its authors' program has them."""
    logits = np.log(1 / np.arange(1, 2001) ** 1.3).astype(np.float32)
    shares = np.exp(logits.astype(np.float64)) / np.exp(logits.astype(np.float64)).sum()
    chooser, uniforms = (choice(temperature=1.0, mirostat=1, mirostat_tau=3.0, seed=2) for _ in range(2))
    mu = 6.0
    for _ in range(50):
        above = sum(log((i + 2) / (i + 1)) * log(shares[i] / shares[i + 1]) for i in range(99))
        exponent = above / sum(log((i + 2) / (i + 1)) ** 2 for i in range(99))
        excess = exponent - 1
        k = max(1, int((excess * 2**mu / (1 - 2000**-excess)) ** (1 / exponent)))
        kept = shares[:k] / shares[:k].sum()
        token = min(int(np.searchsorted(np.cumsum(kept), uniforms.next_uniform(), side="right")), len(kept) - 1)
        assert pick(logits, chooser) == token
        mu -= 0.1 * (-np.log2(kept[token]) - 3.0)


def test_greedy_takes_the_lowest_id_among_equals():
    assert pick(np.array([1, 5, 5, 5], np.float32), choice(repetition_penalty=1.1)) == 1
    assert pick(np.array([1, 5, 5, 5], np.float32), choice(temperature=1.0, top_k=1)) == 1


@pytest.mark.parametrize("options", [*OPTIONS, {"top_k": 3, "top_p": 0.5, "min_p": 0.1}], ids=str)
@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_logits_without_a_finite_best_give_no_token(options, value):
    assert sample_rows(np.full((1, 100), value, np.float32), [choice(temperature=1.0, **options)]) == [NOT_A_TOKEN]


@pytest.mark.parametrize("options", [*OPTIONS[:10], {"top_k": 40, "top_p": 0.99}], ids=str)
def test_impossible_tokens_are_never_drawn(options):
    logits = np.full(200, -np.inf, np.float32)
    logits[[7, 150]] = 1.0
    chooser = choice(temperature=1.0, **options)
    drawn = {pick(logits, chooser) for _ in range(100)}
    assert drawn <= {7, 150}
    assert len(drawn) == 2 or "xtc_probability" in options or "typical_p" in options or "mirostat" in options


@pytest.mark.parametrize("temperature", [1e-3, 1e-12, 1e-310, 5e-324])
@pytest.mark.parametrize("top_k", [0, 3])
def test_a_tiny_temperature_is_greedy_and_says_nothing(temperature, top_k):
    logits = np.array([1, 5, 4.5, -3, 2], np.float32)
    chooser = choice(temperature=temperature, top_k=top_k)
    assert {pick(logits, chooser) for _ in range(20)} == {1}


def test_log_probabilities_are_the_models_own():
    logits = rows(500, 3)
    exact = logits.astype(np.float64)
    logs = exact - np.log(np.exp(exact).sum())
    found = token_logprobs(logits, 17, 4)
    assert found.logprob == pytest.approx(logs[17], abs=1e-12)
    order = np.argsort(-logits, kind="stable")[:4].tolist()
    assert list(found.top) == order
    assert list(found.top.values()) == pytest.approx(logs[order].tolist(), abs=1e-12)
    sampler = Sampler()
    sampler.add(1, Sampling(logprobs=2, logit_bias={9: 100.0}), [0], [], 500)
    picked = sampler.sample(
        ModelOutput(np.array([order[0]], np.int32), logits[None].copy()),
        Step([ScheduledSequence(1, [0], 0, (0,), 1)], []),
    )
    assert picked.tokens == [[9]]
    assert picked.logprobs[1][0].logprob == pytest.approx(logs[9], abs=1e-12)


def test_a_step_of_several_requests_uses_argmax_where_it_suffices():
    sampler = Sampler()
    sampler.add(1, Sampling(), [0], [], 50)
    sampler.add(2, Sampling(temperature=1.0, top_k=1), [0], [], 50)
    sampler.add(3, Sampling(temperature=1.0, seed=5), [0], [], 50)
    logits = rows(4 * 50, 1).reshape(4, 50)
    before = logits.copy()
    parts = [
        ScheduledSequence(1, [0], 0, (0,), 1),
        ScheduledSequence(9, [0], 0, (1,), 0),
        ScheduledSequence(2, [0], 0, (2,), 1),
        ScheduledSequence(3, [0], 0, (3,), 1),
    ]
    best = np.array([11, logits[1].argmax(), NOT_A_TOKEN], np.int32)
    picked = sampler.sample(ModelOutput(best, logits[:3]), Step(parts, []))
    assert picked.tokens == [[11], [logits[1].argmax()], [NOT_A_TOKEN]]
    assert picked.logprobs == {}
    assert (logits == before).all()
    sampler.drop(3)
    assert set(sampler.states) == {2}


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
        ("typical_p", 0, "above 0"),
        ("repetition_penalty", 0, "0.01 to 100"),
        ("seed", -1, "from 0"),
        ("seed", 1 << 64, "from 0"),
        ("seed", "x", "whole number"),
        ("mirostat", 3, "0 to 2"),
        ("logprobs", 101, "0 to 100"),
        ("xtc_threshold", 2, "0 to 1"),
    ],
)
def test_values_out_of_range_are_refused_by_name(name, value, limit):
    with pytest.raises(RequestError, match=f"{name} is .*{limit}"):
        Sampling(**{name: value})


def test_what_cannot_be_combined_or_is_too_much_is_refused():
    with pytest.raises(RequestError, match="mirostat needs a temperature above 0"):
        Sampling(mirostat=2)
    with pytest.raises(RequestError, match="leave out min_p and xtc_probability, or mirostat"):
        Sampling(mirostat=2, temperature=1.0, min_p=0.1, xtc_probability=0.5)
    with pytest.raises(RequestError, match="no two tokens reach it"):
        Sampling(xtc_probability=0.5, xtc_threshold=0.6)
    with pytest.raises(RequestError, match="logit_bias of token 3 is 200"):
        Sampling(logit_bias={3: 200})
    with pytest.raises(RequestError, match="a token of logit_bias is -1"):
        Sampling(logit_bias={-1: 2})
    with pytest.raises(RequestError, match="logit_bias has 1025 tokens: at most 1024"):
        Sampling(logit_bias=dict.fromkeys(range(1025), 1.0))
