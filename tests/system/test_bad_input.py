"""Any input of a caller is served or refused with a RequestError, and other requests do not feel it."""

import asyncio
import math
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sporelm import LLM, AsyncLLM, Grammar, LoraAdapter, SamplingParams
from sporelm.engine import Request
from sporelm.errors import ContextOverflow, ModelError, RequestError, SporeError

NAN, INF = math.nan, math.inf
ODD: list[Any] = [
    None, True, False, -1, 0, 1, 7, 1 << 31, 1 << 63, 1 << 70, 10**5000, -(10**5000), 0.0, 0.5, -0.5, 1e9, 1e300, NAN,
    INF, -INF, 1j, "", "x", "\ud800", "\0", b"x", [], (), ["a"], [""], ["a"] * 5000, [1], [-1], [None], [NAN], [[1]],
    [10**5000], range(10**12), {}, {1: 2.0}, {-1: 1.0}, {1: NAN}, {1: 10**5000}, {"a": 1}, {1: "x"}, {1 << 70: 1.0},
    {1: None}, object(), object, len, np.int64(3), np.int64(-3), np.float32(0.5), np.float64(NAN), np.array([1, 2]),
    np.array(3),
    np.array([0.5]), np.zeros((2, 2)), Grammar(regex="a+"), Grammar(regex="("), SamplingParams(), {"x"}, iter([1]),
]  # fmt: skip
NAMES = [each.name for each in fields(SamplingParams)]
STEADY = SamplingParams(max_tokens=12, temperature=1.0, seed=11)
odd = st.sampled_from(ODD)
CHOSEN = settings(
    deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
def llm(story: Path) -> Iterator[LLM]:
    with LLM(story, threads=1, max_context=128) as made:
        yield made


@pytest.fixture(scope="module")
def steady(llm: LLM) -> list[int]:
    return llm.generate("Once upon a time", STEADY)[0].token_ids


def check(error: SporeError, name: str = "") -> None:
    """An error is one line, not too long, and says what it is about."""
    assert "\n" not in str(error)
    assert len(str(error)) < 1000
    assert name in str(error)


def served_or_refused(llm: LLM, steady: list[int], call: Callable[[], Any]) -> None:
    """Make a call while another answer is being made; nothing of it stays, and the answer is what it is alone."""
    pieces = llm.stream("Once upon a time", STEADY)
    said = next(pieces).token_ids
    try:
        call()
    except SporeError as reason:
        check(reason)
    for piece in pieces:
        said = said + piece.token_ids
    assert said == steady
    assert llm.engine.scheduler.is_idle
    llm.engine.check_integrity()


@pytest.mark.parametrize("name", NAMES)
def test_one_odd_value(llm: LLM, steady: list[int], name: str) -> None:
    """In each field each odd value; what is taken can be used."""
    for value in ODD:
        try:
            params = SamplingParams(**{name: value})
        except RequestError as reason:
            check(reason, name.split("_")[0])
            continue
        if name in ("n", "best_of"):
            params = replace(params, **{name: min(4, value)}) if value else params
        shorter = params if name == "min_tokens" else replace(params, max_tokens=2)
        served_or_refused(llm, steady, lambda params=shorter: llm.generate("The dog", params))


@settings(CHOSEN, max_examples=60)
@given(values=st.dictionaries(st.sampled_from(NAMES), odd, min_size=2, max_size=5))
def test_several_odd_values(values: dict[str, Any]) -> None:
    try:
        params = SamplingParams(**values)
    except RequestError as reason:
        check(reason)
    else:
        params.sampling(0)


@settings(CHOSEN, max_examples=40)
@given(prompt=st.one_of(odd, st.lists(odd, max_size=3)))
def test_odd_prompts(llm: LLM, steady: list[int], prompt: Any) -> None:
    calls = (
        lambda: llm.generate(prompt, STEADY),
        lambda: list(llm.stream(prompt, STEADY)),
        lambda: llm.embed(prompt),
        lambda: llm.logits(prompt),
        lambda: llm.chat(prompt),
    )
    for call in calls:
        served_or_refused(llm, steady, call)


@pytest.mark.parametrize("value", ODD, ids=lambda value: f"{type(value).__name__}")
def test_odd_arguments(llm: LLM, value: Any) -> None:
    calls = (
        lambda: llm.generate("A", value),
        lambda: llm.generate(["A"], [value]),
        lambda: llm.embed("A", pooling=value),
        lambda: llm.wake(value),
        lambda: llm.load_adapter(value),
        lambda: llm.unload_adapter(value),
        lambda: llm.conversation().revert(value),
        lambda: llm.conversation().ask(value),
        lambda: llm.conversation(value).ask("A"),
        lambda: llm.logits([1], adapter=value),
        lambda: Grammar(json_schema=value).source(),
        lambda: Grammar(regex=value).source(),
        lambda: Grammar(lark=value).source(),
        lambda: Grammar(choice=value).source(),
    )
    for call in calls[value is None :]:  # without parameters it is a long answer
        try:
            call()
        except SporeError as reason:
            check(reason)
    assert llm.engine.scheduler.is_idle


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, values in {
        "backend": (5, "none", []), "device": ("cuda:99", 5, None), "threads": (0, -1, "x", 1.5, 10**5000, NAN),
        "max_context": (0, -1, "x", 1.5, 10**5000, NAN, True), "kv": ("f8", 5, [], {}),
        "max_batch": (0, -1, "x", 10**5000),
        "token_budget": (0, "x", NAN, 10**5000), "speculate": ("none", 5, []),
        "trace": (5, "", "\0", "\ud800", b"x", "~no-such-user/x"),
        "record": (5, "", "\0", "\ud800", [], "~no-such-user/x"),
        "session_dir": (5, "", "\0", "~no-such-user/x"), "session_bytes": (0, -1, None, "x"), "eager": ("no", 5),
        "dequantize": (None,), "kv_memory": (0, "x", 1.5, "1Q"), "device_memory": (0, "x", 1.5, "1Q", [], "1G"),
        "experts_on": (5, "gpu", [], "cpu"), "draft_model": (5, "\0", "none"),
        "adapters": (5, "x", [5], ["no"], ["\0"], ["~no-such-user/x"], [LoraAdapter(5)], [LoraAdapter("x", "x", NAN)]),
    }.items() for value in values],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)  # fmt: skip
def test_odd_options(story: Path, name: str, value: Any) -> None:
    try:
        with LLM(story, **{"threads": 1, name: value}):
            assert name == "token_budget", "more than there is may be cut to that"
    except SporeError as reason:
        check(reason)


@pytest.mark.parametrize(
    "call",
    [
        lambda llm: llm.bench_decode("x"),
        lambda llm: llm.bench_decode(5, 1, -1),
        lambda llm: llm.bench_whole(4, 1000, 8),
        lambda llm: llm.bench_whole(10_000, 2, 8),
        lambda llm: llm.bench_prefill(0),
    ],
)
def test_what_would_measure_something_else(llm: LLM, call: Callable[[LLM], float]) -> None:
    with pytest.raises(RequestError):
        call(llm)
    assert llm.engine.scheduler.is_idle


@pytest.mark.parametrize("value", [5, [], object(), "\0", b"x", {}, "none"])
def test_odd_models(value: Any) -> None:
    with pytest.raises((ModelError, RequestError)):
        LLM(value)


def test_what_is_refused_from_one_loop_leaves_the_others_alone(story: Path, llm: LLM, tmp_path: Path) -> None:
    """Overflow, contradictions, a bomb, unknown tokens, a session that was tampered with: each its own clear error."""
    bomb = Grammar(regex="((a{1,300}){1,300}){1,300}")
    session = tmp_path / "talk.session"
    sequence = llm.engine.sequence()
    llm.engine.run([llm.engine.add(Request([5, 6, 7], max_tokens=3, sequence=sequence))])
    llm.engine.save_session(sequence, session, llm.loaded_engine.identity, {})
    llm.engine.drop(sequence)
    data = bytearray(session.read_bytes())
    data[-1] ^= 1
    session.write_bytes(data)

    async def run_together() -> list[Any]:
        async with AsyncLLM(story, threads=1, max_context=128) as many:
            return await asyncio.gather(
                many.generate("Once upon a time", STEADY),
                many.generate([5] * 200),
                many.generate([99999]),
                many.generate("A", replace(STEADY, grammar=bomb)),
                asyncio.to_thread(lambda: SamplingParams(mirostat=2, temperature=0.0)),
                asyncio.to_thread(many.llm.wake, session),
                many.generate("A", replace(STEADY, adapter="none")),
                return_exceptions=True,
            )

    good, overflow, unknown, large, contradiction, tampered, adapter = asyncio.run(run_together())
    assert good.token_ids == llm.generate("Once upon a time", STEADY)[0].token_ids
    assert isinstance(overflow, ContextOverflow)
    assert all(word in str(overflow) for word in ("200 tokens", "128", "the option max_context"))
    for error in (unknown, contradiction, adapter):
        assert isinstance(error, RequestError), error
    assert isinstance(large, RequestError) or large.finish_reason in ("error", "length", "stop")
    assert isinstance(tampered, SporeError)
