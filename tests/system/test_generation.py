"""From a path to text, through every back-end that runs here, with the story model (two layers, f32)."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from available import BACKENDS, open_available
from close import assert_close
from sporelm import LLM, Completion, SamplingParams, pipeline, settings
from sporelm.api import Piece
from sporelm.engine import ModelOutput, Step
from sporelm.errors import BackendError, ContextOverflow, ModelNotFound, RequestError
from sporelm.files.safetensors import open_safetensors

PROMPT = "Once upon a time"
PROMPT_IDS = [1, 80, 147, 201, 282, 57]
GREEDY = SamplingParams(max_tokens=60, temperature=0.0)
# reference/seeds.md, G: confirmed with transformers.
STORY_IDS = [
    *(313, 598, 303, 1049, 1468, 267, 628, 333, 94, 1210, 263, 251, 604, 94, 1030, 94, 1030, 94, 436, 220),
    *(1053, 615, 303, 328, 552, 319, 1269, 163, 1945, 897, 645, 1188, 108, 319, 135, 448, 563, 1799, 1380, 1067),
    *(163, 1855, 325, 825, 1896, 274, 108, 521, 1858, 204, 1803, 94, 1252, 444, 666, 309, 448, 825, 266, 243),
]
STORY = ", a little girl named Lily lived in a small house with her mom, dad, and her dog, Spot, Spot, loved to play"
PROMPTS = [PROMPT, "The dog", "Lily and Tom were playing in the park. They", "A", "One day, a big cat " * 5]


@pytest.fixture(scope="module", params=BACKENDS)
def name(request: pytest.FixtureRequest) -> str:
    """Each back-end that runs here."""
    open_available(request.param).close()
    return str(request.param)


@pytest.fixture(scope="module")
def llm(name: str, story: Path) -> Iterator[LLM]:
    with LLM(story, backend=name, threads=2) as made:
        yield made


class Recorder:
    """Runs steps and keeps the logits that each request wanted."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        self.worker = llm.engine.runner
        self.rows: dict[int, list[np.ndarray]] = {}
        self.steps: list[Step] = []

    def run(self, step: Step) -> ModelOutput:
        scores = self.worker.run(step)
        self.steps.append(step)
        wanting = [scheduled for scheduled in step.sequences if scheduled.num_outputs]
        for scheduled, row in zip(wanting, scores.logits, strict=False):
            self.rows.setdefault(scheduled.request_id, []).append(row.copy())
        return scores

    def __enter__(self) -> "Recorder":
        self.llm.engine.runner = self
        return self

    def __exit__(self, *error: object) -> None:
        self.llm.engine.runner = self.worker


def same(actual: np.ndarray, expected: np.ndarray, name: str) -> None:
    """Bitwise equal on the CPU; numpy's products, which the reference uses, depend on the number of rows."""
    if name == "cpu":
        np.testing.assert_array_equal(actual, expected)
    else:
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-4)


def test_the_greedy_story_is_the_known_one(llm: LLM) -> None:
    (completion,) = llm.generate(PROMPT, GREEDY)
    assert completion.prompt_token_ids == PROMPT_IDS
    assert completion.token_ids == STORY_IDS
    assert completion.text.startswith(STORY)
    assert completion.finish_reason == "length"
    timings = completion.timings
    assert min(timings.load_s, timings.ttft_s, timings.prefill_tok_s, timings.decode_tok_s) > 0


def test_eager_gives_the_same_story(name: str, story: Path) -> None:
    with LLM(story, backend=name, eager=True) as llm:
        assert llm.generate([PROMPT], GREEDY)[0].token_ids == STORY_IDS


def test_pieces_put_together_are_the_text(llm: LLM) -> None:
    pieces = list(llm.stream(PROMPT, GREEDY))
    completion = pieces[-1].completion
    assert completion is not None
    assert "".join(piece.text for piece in pieces) == completion.text == llm.generate(PROMPT, GREEDY)[0].text
    assert [token for piece in pieces for token in piece.token_ids] == STORY_IDS
    assert [piece.completion for piece in pieces[:-1]] == [None] * (len(pieces) - 1)


def test_the_same_seed_gives_the_same_text(llm: LLM) -> None:
    def text(seed: int | None) -> tuple[str, int]:
        (completion,) = llm.generate(PROMPT, SamplingParams(max_tokens=40, temperature=1.2, seed=seed))
        return completion.text, completion.seed

    assert text(5) == text(5) != text(6)
    drawn, seed = text(None)
    assert text(seed) == (drawn, seed)


def test_prompts_together_give_what_each_gives_alone(llm: LLM, name: str) -> None:
    params = [SamplingParams(max_tokens=20, temperature=temp, seed=3) for temp in (0.0, 0.9, 0.0, 1.5, 0.0)]
    with Recorder(llm) as together:
        completions = llm.generate(PROMPTS, params)
    alone = []
    with Recorder(llm) as single:
        for prompt, each in zip(PROMPTS, params, strict=True):
            alone += llm.generate(prompt, each)
    assert max(len(step.sequences) for step in together.steps) == len(PROMPTS)
    assert [each.text for each in completions] == [each.text for each in alone]
    for first, second in zip(sorted(together.rows), sorted(single.rows), strict=True):
        same(np.array(together.rows[first]), np.array(single.rows[second]), name)


@pytest.mark.parametrize("budget", [1, 7, 33])
def test_a_prompt_in_chunks_is_the_whole_prompt(llm: LLM, name: str, story: Path, budget: int) -> None:
    ids = llm.tokenizer.encode(PROMPTS[2] + PROMPTS[4] * 3)
    with LLM(story, backend=name, threads=1, token_budget=budget) as small:
        same(small.logits(ids), llm.logits(ids), name)
        (chunked,) = small.generate([ids], GREEDY)
    assert chunked.token_ids == llm.generate([ids], GREEDY)[0].token_ids


def test_logits_are_the_scores_behind_the_greedy_choice(llm: LLM) -> None:
    ids = PROMPT_IDS + STORY_IDS
    scores = llm.logits(ids)
    assert (scores.shape, scores.dtype) == ((66, 2048), np.float32)
    assert scores.argmax(axis=1)[5:-1].tolist() == STORY_IDS
    before = scores.copy()
    llm.logits(ids[::-1])
    np.testing.assert_array_equal(scores, before)
    top = np.sort(scores[5])[::-1][:5]
    assert_close(top, np.array([17.3808, 13.7726, 13.7435, 12.6918, 11.3585], np.float32), "logits")


def test_a_stop_string_ends_the_answer_before_it(llm: LLM) -> None:
    params = SamplingParams(max_tokens=60, temperature=0.0, stop=["zzz", "her mom", "small house with her"])
    pieces = list(llm.stream(PROMPT, params))
    completion = pieces[-1].completion
    assert completion is not None
    assert completion.text == ", a little girl named Lily lived in a "
    assert "".join(piece.text for piece in pieces) == completion.text
    assert completion.finish_reason == "stop"
    assert len(completion.token_ids) < 20
    assert llm.generate(PROMPT, params)[0].token_ids == completion.token_ids


def test_a_stop_string_of_one_prompt_leaves_the_others_alone(llm: LLM) -> None:
    stopped = SamplingParams(max_tokens=60, temperature=0.0, stop="Lily")
    first, second = llm.generate([PROMPT, PROMPT], [stopped, GREEDY])
    assert first.text == ", a little girl named "
    assert second.token_ids == STORY_IDS


def test_stop_ids_and_the_end_of_text(llm: LLM) -> None:
    (completion,) = llm.generate(PROMPT, SamplingParams(max_tokens=60, temperature=0.0, stop_token_ids=[267]))
    assert completion.token_ids == STORY_IDS[:6]
    assert (completion.text, completion.finish_reason) == (", a little girl named Lily lived in a small hou", "stop")
    whole = SamplingParams(max_tokens=400, temperature=0.0)
    (ended,) = llm.generate(PROMPT, whole)
    assert (ended.token_ids[-1], ended.finish_reason) == (llm.tokenizer.eos_id, "stop")
    assert ended.text == llm.generate(PROMPT, replace(whole, max_tokens=len(ended.token_ids) - 1))[0].text
    (longer,) = llm.generate(PROMPT, replace(whole, ignore_eos=True))
    assert len(longer.token_ids) > len(ended.token_ids)
    assert longer.token_ids[: len(ended.token_ids)] == ended.token_ids


def test_closing_a_stream_frees_its_pages(llm: LLM) -> None:
    free = llm.engine.kv_cache.pages.num_free
    stream = llm.stream(PROMPT, GREEDY)
    other = llm.stream(PROMPTS[1], GREEDY)
    next(stream)
    next(other)
    assert llm.engine.kv_cache.pages.num_free == free - 2
    stream.close()
    assert llm.engine.kv_cache.pages.num_free == free - 1
    assert "".join(piece.text for piece in other)
    assert llm.engine.kv_cache.pages.num_free == free
    llm.engine.check_integrity()


def test_a_stream_can_be_closed_while_its_prompt_is_computed(name: str, story: Path) -> None:
    with LLM(story, backend=name, threads=1, token_budget=4) as llm, Recorder(llm) as recorder:
        free = llm.engine.kv_cache.pages.num_free
        stream = llm.stream([5] * 100, GREEDY)
        assert [next(stream) for _ in range(3)] == [Piece("", [])] * 3
        stream.close()
        assert len(recorder.steps) == 3
        assert llm.engine.scheduler.is_idle
        assert llm.engine.kv_cache.pages.num_free == free
        assert llm.generate(PROMPT, GREEDY)[0].token_ids == STORY_IDS


def test_streams_may_be_interleaved(llm: LLM) -> None:
    streams = [llm.stream(prompt, GREEDY) for prompt in PROMPTS[:3]]
    texts = [""] * 3
    for _ in range(200):  # some pieces are empty: steps that computed a part of a prompt
        for index, stream in enumerate(streams):
            for piece in stream:
                texts[index] += piece.text
                break
    assert texts == [completion.text for completion in llm.generate(PROMPTS[:3], GREEDY)]


def test_what_cannot_be_done_is_one_line_with_the_limit(llm: LLM) -> None:
    with pytest.raises(ContextOverflow, match=r"513 tokens.*holds 512"):
        llm.generate([[5] * 513])
    with pytest.raises(ContextOverflow):
        llm.stream([5] * 513)
    with pytest.raises(ContextOverflow):
        llm.logits([5] * 513)
    with pytest.raises(RequestError, match=r"token 2048.*0 to 2047"):
        llm.generate([[2048]])
    with pytest.raises(RequestError, match="no tokens"):
        llm.generate([[]])
    with pytest.raises(RequestError, match="2 sampling parameters for 1 prompts"):
        llm.generate([PROMPT], [GREEDY, GREEDY])
    with pytest.raises(RequestError, match="no chat template"):
        llm.chat([{"role": "user", "content": "Hi"}])
    assert llm.generate([]) == []


def test_ids_may_come_as_arrays(llm: LLM) -> None:
    (one,) = llm.generate(np.array(PROMPT_IDS), GREEDY)
    assert (one.prompt_token_ids, one.token_ids) == (PROMPT_IDS, STORY_IDS)
    both = llm.generate(np.array([PROMPT_IDS, PROMPT_IDS], np.int32), GREEDY)
    assert [each.token_ids for each in both] == [STORY_IDS] * 2
    np.testing.assert_array_equal(llm.logits(np.array(PROMPT_IDS)), llm.logits(PROMPT_IDS))


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([1.5], "the prompt is 1.5: it must be a list of token ids"),
        (["a", 3], "the prompt is 3"),
        ([[1, "a"]], "a token of the prompt is 'a': it must be a whole number"),
        ([[True]], "is True"),
        (np.array([1.5]), "the prompt is .*1.5"),
        (5, "prompts is a int"),
        (None, "prompts is a NoneType"),
        ([b"ab"], "the prompt is b'ab'"),
    ],
    ids=str,
)
def test_an_invalid_prompt_is_refused(llm: LLM, prompts: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        llm.generate(prompts)
    assert llm.engine.scheduler.is_idle


def test_slips_of_other_calls_are_one_line(llm: LLM) -> None:
    for wrong in ({"max_tokens": 3}, [{"max_tokens": 3}], 5):
        with pytest.raises(RequestError, match="it must be SamplingParams"):
            llm.generate(PROMPT, wrong)
    for ids in ([], np.array([]), [1.5], 5, "text", [[1]]):
        with pytest.raises(RequestError, match="the prompt"):
            llm.logits(ids)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"max_tokens": -1}, "max_tokens is -1"),
        ({"max_tokens": 2.5}, "max_tokens is 2.5"),
        ({"temperature": -1.0}, "temperature is -1"),
        ({"top_p": 0.0}, "top_p is 0"),
        ({"top_k": -2}, "top_k is -2"),
        ({"seed": -(1 << 63) - 1}, "seed is -9223372036854775809: it must be from -9223372036854775808 to"),
        ({"seed": 1 << 64}, "seed is 18446744073709551616"),
        ({"top_k": 1 << 31}, "top_k is 2147483648"),
        ({"stop": [""]}, "stop must contain strings that are not empty"),
        ({"stop": ["x"] * 65}, "stop has 65 strings"),
        ({"stop": 5}, "stop is 5: it must be a string or a list"),
        ({"stop": [5]}, "must contain strings that are not empty"),
        ({"stop_token_ids": 5}, "stop_token_ids is 5: it must be a list"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids is 'a': it must be a whole number"),
        ({"max_tokens": "8"}, "max_tokens is '8': it must be a whole number"),
    ],
)
def test_sampling_values_are_checked(options: Mapping[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        SamplingParams(**options)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"kv": "q8"}, RequestError, "kv is 'q8'.*f16, f32"),
        ({"max_batch": 0}, RequestError, "max_batch is 0"),
        ({"max_batch": 513}, RequestError, "max_batch is 513: a step on (cpu|reference|torch) has at most 512 tokens"),
        ({"token_budget": 1000}, RequestError, "token_budget is 1000: a step on .* 512 tokens; give less, or leave"),
        ({"max_context": 513}, RequestError, "the option max_context is 513.*1 to 512"),
        ({"max_context": 0}, RequestError, "the option max_context is 0"),
        ({"max_context": "8"}, RequestError, "the option max_context is '8': it must be a whole number"),
        ({"max_batch": 2.5}, RequestError, "max_batch is 2.5: it must be a whole number"),
        ({"token_budget": True}, RequestError, "token_budget is True: it must be a whole number"),
        ({"kv": 16}, RequestError, "kv is 16"),
        ({"threads": 0}, RequestError, "threads is 0"),
        ({"device": "cuda"}, BackendError, r"no such device \(got 'cuda'"),
        ({"backend": "abacus"}, BackendError, "abacus"),
    ],
)
def test_options_are_checked(story: Path, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        LLM(story, **{"backend": "reference", **options})


def test_the_environment_names_the_backend(story: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPORE_BACKEND", "reference")  # a fresh Setting: the real one may have been read already
    monkeypatch.setattr(settings, "BACKEND", settings.Setting("SPORE_BACKEND", lambda: "cpu", ""))
    with LLM(story) as llm, pipeline(story) as pipe:
        assert (llm.backend.name, pipe.llm.backend.name) == ("reference", "reference")


def test_a_missing_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        LLM(tmp_path / "nothing.gguf", backend="reference")


def test_the_context_may_be_smaller_and_is_then_the_limit(story: Path) -> None:
    with LLM(story, backend="reference", max_context=20) as llm:
        (completion,) = llm.generate(PROMPT, GREEDY)
        assert completion.token_ids == STORY_IDS[:15]
        assert completion.finish_reason == "length"
        with pytest.raises(ContextOverflow, match=r"holds 20: .*the option max_context \(the model allows 512\)"):
            llm.generate([[5] * 21])


def test_half_numbers_in_the_cache_change_little(name: str, story: Path) -> None:
    with LLM(story, backend=name, kv="f16") as half, LLM(story, backend=name) as full:
        assert (half.kv, full.kv) == ("f16", "f32")
        ids = PROMPT_IDS + STORY_IDS
        difference = np.abs(half.logits(ids) - full.logits(ids)).max()
        assert 0 < difference < 0.05


def test_a_closed_model_says_so(story: Path) -> None:
    llm = LLM(story, backend="reference")
    stream = llm.stream(PROMPT, GREEDY)
    next(stream)
    llm.close()
    llm.close()
    with pytest.raises(RequestError, match="this model is closed"):
        next(stream)
    with pytest.raises(RequestError, match="this model is closed"):
        llm.generate(PROMPT)


def test_measurements_run_what_they_say(llm: LLM) -> None:
    with Recorder(llm) as recorder:
        assert llm.bench_prefill(100) > 0
        pages = llm.engine.kv_cache.pages
        written = set(pages.cached)
        assert llm.bench_prefill(100) > 0
        assert set(pages.cached) == written, "runs write to the same pages"
    assert sum(step.num_tokens for step in recorder.steps) == 200
    with Recorder(llm) as recorder:
        assert llm.bench_decode(9) > 0
    assert [step.num_tokens for step in recorder.steps] == [1] * 9
    with Recorder(llm) as recorder:
        assert llm.bench_decode(9, batch=3, depth=20) > 0
    assert [step.num_tokens for step in recorder.steps] == [60, *[3] * 9]
    with pytest.raises(RequestError, match="batch is 99"):
        llm.bench_decode(9, batch=99)
    with pytest.raises(RequestError, match="more than the context"):
        llm.bench_decode(500, depth=100)
    with pytest.raises(ContextOverflow, match="600 tokens"):
        llm.bench_decode(8, depth=600)
    assert llm.engine.scheduler.is_idle


def test_the_pipeline_that_others_know(name: str, story: Path) -> None:
    with pipeline(story, device="cpu", tp=1, backend=name) as pipe:
        one = pipe(PROMPT, request_output_len=60, do_preprocess=False, temperature=0.0)
        assert (one.token_ids, one.generate_token_len, one.input_token_len) == (STORY_IDS, 60, 6)
        many = pipe(PROMPTS, request_output_len=5, do_preprocess=False, temperature=0.0)
        assert [response.index for response in many] == list(range(len(PROMPTS)))
        assert many[0].text == ", a little girl named Lily lived in a small hou"
        with pytest.raises(RequestError, match="warmth"):
            pipe(PROMPT, warmth=1)
        with pytest.raises(RequestError, match="n is 2: a pipeline returns one"):
            pipe(PROMPT, n=2)
        with pytest.raises(RequestError, match="prompts is 5"):
            pipe(5)  # type: ignore[call-overload]
        scored = pipe(PROMPT, request_output_len=2, do_preprocess=False, temperature=0.0, logprobs=1)
        assert scored.error is None
        assert [list(each.top) for each in scored.logprobs or ()] == [[token] for token in STORY_IDS[:2]]
        with pytest.raises(RequestError, match="no chat template"):
            pipe(PROMPT)
    with pytest.raises(RequestError, match="tp: out of range"):
        pipeline(story, tp=0)


def test_threads_share_a_model(llm):
    params = SamplingParams(max_tokens=12, temperature=0.0)
    expected = llm.generate("Once upon a time", params)[0].token_ids
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: llm.generate("Once upon a time", params)[0].token_ids, range(12)))
    assert answers == [expected] * 12
    llm.engine.check_integrity()


def test_a_prefix_that_others_computed_leaves_every_bit_as_it_is(llm: LLM) -> None:
    ids = [1 + (7 * place) % 500 for place in range(200)]
    prompts = [[*ids, 5, 6, 7], [*ids[:150], 9, 8]]
    fresh = [llm.generate([prompt], replace(GREEDY, salt=f"alone {n}"))[0] for n, prompt in enumerate(prompts)]
    llm.generate([ids], replace(GREEDY, salt="shared"))
    cached = llm.generate(prompts, replace(GREEDY, salt="shared"))
    assert [answer.cached_tokens for answer in fresh] == [0, 0]
    assert [answer.cached_tokens for answer in cached] == [192, 128]
    assert [answer.cache_miss for answer in cached] == [None, None]
    assert [answer.token_ids for answer in cached] == [answer.token_ids for answer in fresh]


def test_log_probabilities_come_with_the_ids_they_are_of(llm: LLM) -> None:
    params = SamplingParams(max_tokens=8, temperature=0.0, logprobs=3, stop=())
    (answer,) = llm.generate("Once upon a time", params)
    assert answer.logprobs is not None
    assert len(answer.logprobs) == len(answer.token_ids)
    scores = llm.logits([*answer.prompt_token_ids, *answer.token_ids])[len(answer.prompt_token_ids) - 1 : -1]
    exact = scores.astype(np.float64)
    logs = exact - np.log(np.exp(exact).sum(axis=1, keepdims=True))
    for row, (token, found) in enumerate(zip(answer.token_ids, answer.logprobs, strict=True)):
        assert next(iter(found.top)) == token  # greedy
        assert list(found.top) == np.argsort(-scores[row], kind="stable")[:3].tolist()
        assert found.logprob == pytest.approx(logs[row, token], abs=1e-5)
    assert llm.generate("Once", GREEDY)[0].logprobs is None


def test_answers_can_be_steered(llm: LLM) -> None:
    plain = llm.generate("Once upon a time", GREEDY)[0]
    banned = plain.token_ids[0]
    steered = llm.generate("Once upon a time", replace(GREEDY, logit_bias={banned: -100.0}))[0]
    assert steered.token_ids[0] != banned
    breaks = llm.tokenizer.ids_with((".",))
    assert breaks
    assert all("." in llm.tokenizer.id_to_piece(token) for token in breaks)
    long = SamplingParams(max_tokens=120, temperature=0.0, ignore_eos=True)
    dull = llm.generate("Once upon a time", long)[0].token_ids
    lively = llm.generate("Once upon a time", replace(long, dry_multiplier=2.0, dry_breakers=[]))[0].token_ids

    def repeated(ids: list[int]) -> int:
        return len(ids) - 4 - len({tuple(ids[place : place + 4]) for place in range(len(ids) - 4)})

    assert repeated(lively) < max(1, repeated(dull))


def test_several_answers_to_one_prompt_compute_it_once(llm: LLM) -> None:
    params = SamplingParams(max_tokens=10, temperature=1.5, seed=3, n=3, salt="several")
    (answer,) = llm.generate("Once upon a time there was", params)
    answers = [answer, *answer.alternatives]
    assert [each.seed for each in answers] == [3, 4, 5]
    assert len({each.text for each in answers}) == 3
    assert [each.cached_tokens for each in answers[1:]] == [len(answer.prompt_token_ids) - 1] * 2
    for each in answers:
        alone = replace(params, n=1, seed=each.seed, salt="alone")
        assert llm.generate("Once upon a time there was", alone)[0].token_ids == each.token_ids


def test_the_best_of_several_answers_are_the_likeliest(llm: LLM) -> None:
    params = SamplingParams(max_tokens=8, temperature=2.0, seed=1, n=4, logprobs=0)
    (answer,) = llm.generate("The dog", params)

    def likelihood(each: Completion) -> float:
        assert each.logprobs is not None
        return sum(found.logprob for found in each.logprobs) / len(each.logprobs)

    ranked = sorted([answer, *answer.alternatives], key=lambda each: -likelihood(each))
    (best,) = llm.generate("The dog", replace(params, n=2, best_of=4, logprobs=None))
    assert [best.text, *(each.text for each in best.alternatives)] == [each.text for each in ranked[:2]]
    assert best.logprobs is None
    with pytest.raises(RequestError, match="best_of is 1"):
        SamplingParams(n=2, best_of=1)
    with pytest.raises(RequestError, match="a stream has one completion"):
        llm.stream("The dog", params)


def test_guesses_from_the_text_leave_every_token_as_it_is(llm: LLM, name: str, story: Path) -> None:
    text = "Tom has a red ball. Tom has a red ball. Tom has a red"
    wanted = [replace(GREEDY, max_tokens=40), SamplingParams(max_tokens=40, temperature=0.7, seed=2)]
    plain = llm.generate([text] * 2, wanted)
    with LLM(story, backend=name, threads=2, speculate="ngram") as quick:
        for params, answer in zip(wanted, plain, strict=True):
            assert quick.generate(text, params)[0].token_ids == answer.token_ids
        assert quick.engine.speculation is not None, "whether it guesses is a matter of time: slow back-ends need not"
    with pytest.raises(RequestError, match="speculate is 'magic'"):
        LLM(story, backend=name, speculate="magic")


def test_embeddings_are_what_the_scores_are_made_of(llm: LLM, name: str, story: Path) -> None:
    text = "Once upon a time there was a little girl"
    ids = llm.prompt_ids(text)
    chunks: list[np.ndarray] = []
    for _ in llm.engine.hidden(ids, lambda chunk: chunks.append(chunk.copy())):
        llm.engine.step()
    (rows,) = chunks
    with open_safetensors(story) as files:
        embedding = files.tensor("lm_head.weight").dequantize()
    np.testing.assert_allclose(rows @ embedding.T, llm.logits(ids), atol=2e-4)
    raw = {how: llm.embed(text, pooling=how, normalize=False)[0] for how in ("mean", "last", "cls")}
    np.testing.assert_allclose(raw["mean"], rows.mean(axis=0), rtol=1e-5, atol=1e-6)
    assert (raw["last"] == rows[-1]).all()
    assert (raw["cls"] == rows[0]).all()
    both = llm.embed([text, ids])
    assert both.shape == (2, llm.config.width)
    assert (both[0] == both[1]).all()
    assert np.linalg.norm(both[0]) == pytest.approx(1)
    with LLM(story, backend=name, token_budget=3, eager=True) as small:
        np.testing.assert_allclose(small.embed(text), both[:1], atol=0 if name == "cpu" else 1e-5)
    for wrong, message in (({"pooling": "max"}, "pooling is 'max'"), ({"texts": []}, "nothing to embed")):
        with pytest.raises(RequestError, match=message):
            llm.embed(**({"texts": text} | wrong))


def test_the_error_of_a_list_says_which_prompt_it_is(llm: LLM) -> None:
    long = [1] * (llm.max_context + 1)
    with pytest.raises(ContextOverflow, match=rf"^prompt 2 of 3: the prompt has {len(long)} tokens"):
        llm.generate(["a", long, "b"])
    with pytest.raises(ContextOverflow, match=r"^the prompt has"):
        llm.generate([long])


def test_urgent_answers_come_first(story: Path) -> None:
    """One runs at a time; a lower priority number overtakes earlier requests."""
    with LLM(story, max_batch=1, max_context=128) as one:
        params = [SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True, priority=each) for each in (5, 5, -1)]
        answers = [one.prepare_generation(one.prompt_ids("Once"), each) for each in params]
        one.run_generations(answers)
        began = [answer.request.start_time for answer in answers]
        assert began[2] < began[0] < began[1]
    with pytest.raises(RequestError, match="priority is 1048577: it must be from -1048576 to 1048576"):
        SamplingParams(priority=(1 << 20) + 1)
