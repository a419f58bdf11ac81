"""Images in prompts, end to end, with a tiny model of drawn weights."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drawn_families import FIRST
from drawn_vision import QWEN_PICTURE, write_qwen2vl
from imatrix_models import vocabulary
from lora_files import write_peft
from sporelm import LLM, SamplingParams
from sporelm.engine import Request
from sporelm.engine.prompt_images import PromptIds, image_row_ids, is_image_id
from sporelm.engine.sampling import Sampling
from sporelm.engine.step import Step
from sporelm.errors import ContextOverflow, MemoryShortage, RequestError
from tiny_files import write_gguf
from tiny_models import LLAMA, Tiny
from vision_folders import draw_picture

GREEDY = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
WIDE, TALL = draw_picture(190, 70, seed=1), draw_picture(40, 150, seed=2)
TEXT = f"Look: {QWEN_PICTURE} and {QWEN_PICTURE} What differs, and why is that so? "


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen2vl(tmp_path_factory.mktemp("vision") / "qwen2vl")


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(folder, threads=2, max_context=512, kv="f32") as llm:
        yield llm


def say(text: str, *pictures: Any) -> list[dict[str, Any]]:
    parts = [{"type": "image", "image": picture} for picture in pictures]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


def open_fresh(folder: Path, **options: Any) -> LLM:
    return LLM(folder, **{"threads": 2, "max_context": 512, "kv": "f32"} | options)


def request_of(ids: list[int], max_tokens: int = 12) -> Request:
    return Request(ids, sampling=Sampling(temperature=0.0), max_tokens=max_tokens)


def test_plans_compute_what_single_ops_compute(folder: Path, llm: LLM) -> None:
    ids = llm.prompt_with_images(TEXT, [WIDE, TALL])
    with open_fresh(folder, eager=True) as eager:
        assert np.array_equal(eager.logits(eager.prompt_with_images(TEXT, [WIDE, TALL])), llm.logits(ids))


@pytest.mark.parametrize("token_budget", [7, 16, 33])
def test_a_prompt_may_be_cut_inside_an_image(folder: Path, llm: LLM, token_budget: int) -> None:
    ids = llm.prompt_with_images(TEXT, [WIDE, TALL])
    with open_fresh(folder, token_budget=token_budget, max_batch=4) as chunked:
        assert np.array_equal(chunked.logits(chunked.prompt_with_images(TEXT, [WIDE, TALL])), llm.logits(ids))


@pytest.mark.parametrize("threads", [1, 3])
def test_the_number_of_threads_changes_nothing(folder: Path, llm: LLM, threads: int) -> None:
    ids = llm.prompt_with_images(TEXT, [WIDE, TALL])
    with open_fresh(folder, threads=threads) as other:
        assert np.array_equal(other.logits(other.prompt_with_images(TEXT, [WIDE, TALL])), llm.logits(ids))


def test_the_rows_of_a_picture_do_not_depend_on_the_pieces(folder: Path, llm: LLM) -> None:
    (image,) = llm.image_reader.read(WIDE)[0].images  # type: ignore[union-attr]
    runner = llm.engine.image_encoder.runner  # type: ignore[union-attr]
    whole = runner.compute(image)
    runner.piece_rows = 9
    job = runner.start(image)
    while not job.is_done:
        job.advance(1e-9)
        runner.piece_rows = 7 if runner.piece_rows != 7 else 20
    assert job.num_pieces > 20
    assert np.array_equal(job.rows, whole)


def test_answers_are_the_same_alone_and_in_company(llm: LLM) -> None:
    prompts: list[Sequence[int]] = [
        llm.prompt_with_images(TEXT, [WIDE, TALL]),
        llm.prompt_ids("Only a text, without any picture, that is a little longer than the others are."),
        llm.prompt_with_images(f"{QWEN_PICTURE} What is it?", [TALL]),
        llm.prompt_with_images(f"What is it? {QWEN_PICTURE}", [WIDE]),
    ]
    params = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True, logprobs=5)
    alone = [llm.generate([prompt], params)[0] for prompt in prompts]
    together = llm.generate(prompts, params)
    assert [each.token_ids for each in together] == [each.token_ids for each in alone]
    assert [each.logprobs for each in together] == [each.logprobs for each in alone]


def test_a_picture_that_was_seen_is_not_computed_again(folder: Path) -> None:
    with open_fresh(folder) as llm:
        encoder = llm.engine.image_encoder
        assert encoder is not None
        first = llm.generate([llm.prompt_with_images(TEXT, [WIDE, TALL])], GREEDY)[0]
        assert encoder.num_computed == 2
        again = llm.generate([llm.prompt_with_images(TEXT, [WIDE, TALL])], GREEDY)[0]
        assert (again.token_ids, encoder.num_computed) == (first.token_ids, 2)
        assert again.cached_tokens >= 64
        other = llm.generate([llm.prompt_with_images(f"New: {QWEN_PICTURE}", [WIDE])], GREEDY)[0]
        assert encoder.num_computed == 2, "its rows were kept, though the prefix is another one"
        assert other.cached_tokens == 0


def test_a_cached_prefix_gives_the_same_answer(folder: Path) -> None:
    follow = TEXT + "And which of the two is larger? Say it in one word."
    with open_fresh(folder) as llm:
        fresh = llm.generate([llm.prompt_with_images(follow, [WIDE, TALL])], GREEDY)[0]
    with open_fresh(folder) as llm:
        llm.generate([llm.prompt_with_images(TEXT, [WIDE, TALL])], GREEDY)
        cached = llm.generate([llm.prompt_with_images(follow, [WIDE, TALL])], GREEDY)[0]
    assert cached.cached_tokens >= 64
    assert cached.token_ids == fresh.token_ids


def test_pictures_that_differ_in_a_pixel_share_no_prefix(llm: LLM) -> None:
    other = WIDE.copy()
    other[3, 5] ^= 255
    ids, others = (llm.prompt_with_images(f"{QWEN_PICTURE} What?", [each]) for each in (WIDE, other))
    assert len(ids) == len(others)
    assert sum(a == b for a, b in zip(ids, others, strict=True)) == len(ids) - ids.images[0].num_rows  # type: ignore[attr-defined]


def test_chat_finds_the_picture_of_the_turn_before(folder: Path) -> None:
    with open_fresh(folder) as llm:
        first = llm.chat(say("What is in this picture? Describe it.", WIDE), GREEDY)
        messages = [
            *say("What is in this picture? Describe it.", WIDE),
            {"role": "assistant", "content": first.text},
            {"role": "user", "content": "And what else?"},
        ]
        second = llm.chat(messages, GREEDY)
        assert second.cached_tokens > len(first.prompt_token_ids) - 2
        assert llm.engine.image_encoder.num_computed == 1  # type: ignore[union-attr]


def test_several_answers_to_one_picture(llm: LLM) -> None:
    ids = llm.prompt_with_images(TEXT, [WIDE, TALL])
    sampled = llm.generate([ids], SamplingParams(max_tokens=8, n=3, seed=5, temperature=1.0))[0]
    again = llm.generate([ids], SamplingParams(max_tokens=8, n=3, seed=5, temperature=1.0))[0]
    texts = [sampled.text, *(each.text for each in sampled.alternatives)]
    assert texts == [again.text, *(each.text for each in again.alternatives)]
    assert len(set(texts)) == 3


def test_drafts_change_no_answer(folder: Path, llm: LLM) -> None:
    ids = llm.prompt_with_images(TEXT, [WIDE, TALL])
    params = SamplingParams(max_tokens=60, temperature=0.0, ignore_eos=True)
    with open_fresh(folder, speculate="ngram") as drafting:
        found = drafting.generate([drafting.prompt_with_images(TEXT, [WIDE, TALL])], params)[0]
    assert found.token_ids == llm.generate([ids], params)[0].token_ids
    assert found.drafted


def test_a_request_that_is_preempted_goes_on_with_its_images(folder: Path, llm: LLM) -> None:
    prompts = [llm.prompt_with_images(TEXT + word, [WIDE, TALL]) for word in ("one", "two", "three")]
    params = SamplingParams(max_tokens=100, temperature=0.0, ignore_eos=True)
    expected = [each.token_ids for each in llm.generate(prompts, params)]
    with open_fresh(folder, max_context=256, kv_memory=6 * 64 * 2 * 2 * 2 * 12 * 4) as small:
        assert small.engine.limits.num_pages <= 7
        found = small.generate(
            [small.prompt_with_images(TEXT + word, [WIDE, TALL]) for word in ("one", "two", "three")], params
        )
        assert small.metrics.preemptions > 0
    assert [each.token_ids for each in found] == expected


def test_a_text_goes_on_while_a_picture_is_read(folder: Path) -> None:
    with open_fresh(folder) as llm:
        engine, encoder = llm.engine, llm.engine.image_encoder
        assert encoder is not None
        encoder.runner.piece_rows = encoder.runner.max_piece_rows = 32
        text = engine.add(request_of(llm.prompt_ids("A text"), 200))
        engine.step()
        seen = engine.add(request_of(llm.prompt_with_images(f"{QWEN_PICTURE} x", [draw_picture(200, 150)])))
        generated = []
        while seen.num_generated == 0:
            engine.step()
            generated.append(text.num_generated)
        assert generated == sorted(set(generated)), "each step gives the text a token"
        assert len(generated) > 5
        engine.run([text, seen])


def test_other_requests_of_the_same_tenant_do_not_wait_for_a_picture(llm: LLM) -> None:
    engine = llm.engine
    picture = draw_picture(201, 151, seed=9)
    seen = engine.add(request_of(llm.prompt_with_images(f"{QWEN_PICTURE} x", [picture])))
    text = engine.add(request_of(llm.prompt_ids("A text that comes after it"), 2))
    engine.step()
    assert text.num_generated == 1
    assert seen.num_generated == 0
    engine.run([text, seen])


def test_a_cancelled_picture_is_not_computed_to_its_end(folder: Path) -> None:
    with open_fresh(folder) as llm:
        engine, encoder = llm.engine, llm.engine.image_encoder
        assert encoder is not None
        encoder.runner.piece_rows = encoder.runner.max_piece_rows = 32
        seen = engine.add(request_of(llm.prompt_with_images(f"{QWEN_PICTURE} x", [WIDE])))
        text = engine.add(request_of(llm.prompt_ids("A text"), 20))
        engine.step()
        engine.cancel(seen)
        engine.run([text])
        assert (encoder.has_work, encoder.num_computed) == (False, 0)


def test_a_tower_that_fails_ends_the_requests_of_that_picture_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_fresh(folder) as llm:
        engine, encoder = llm.engine, llm.engine.image_encoder
        assert encoder is not None
        run_piece, failures = encoder.runner.run_piece, [ValueError("no luck")]

        def fail_once(*args: Any) -> Any:
            if failures:
                raise failures.pop()
            return run_piece(*args)

        monkeypatch.setattr(encoder.runner, "run_piece", fail_once)
        first = engine.add(request_of(llm.prompt_with_images(f"{QWEN_PICTURE} x", [WIDE])))
        second = engine.add(request_of(llm.prompt_with_images(f"{QWEN_PICTURE} x", [TALL])))
        text = engine.add(request_of(llm.prompt_ids("A text"), 3))
        engine.run([first, second, text])
        assert (first.finish_reason, second.finish_reason, text.finish_reason) == ("error", "length", "length")
        assert first.error == "image: the vision tower failed (no luck)"


def test_a_cancelled_picture_leaves_nothing_behind(llm: LLM) -> None:
    engine, encoder = llm.engine, llm.engine.image_encoder
    assert encoder is not None
    request = engine.add(request_of(llm.prompt_with_images(f"{QWEN_PICTURE} x", [draw_picture(99, 71, seed=77)])))
    engine.scheduler._is_ready(request)
    assert encoder.has_work
    engine.cancel(request)
    assert engine.is_idle
    assert not encoder.has_work


def test_ids_of_image_rows_stand_for_images_alone(llm: LLM) -> None:
    ids = llm.prompt_with_images(f"{QWEN_PICTURE} x", [WIDE])
    assert isinstance(ids, PromptIds)
    with pytest.raises(RequestError, match="the prompt holds token 46116"):
        llm.generate([PromptIds([*ids, (1 << 62) + 5], ids.images)], GREEDY)


def test_too_many_patches_are_refused_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_fresh(folder) as llm:
        ids = llm.prompt_with_images(f"{QWEN_PICTURE} x", [WIDE])
        monkeypatch.setattr("sporelm.engine.tower_runner.MAX_ROWS", 10)
        with pytest.raises(RequestError, match=r"image: too many patches \(got \d+; allowed 10\)"):
            llm.generate([ids], GREEDY)
        assert llm.generate([llm.prompt_ids("A text")], GREEDY)


@pytest.mark.parametrize(
    "text", [f"{QWEN_PICTURE} x", f"A text in front of a picture. {QWEN_PICTURE} x", f"{QWEN_PICTURE} {QWEN_PICTURE}"]
)
def test_a_context_with_pictures_rolls(folder: Path, text: str) -> None:
    with open_fresh(folder, max_context=96) as llm:
        ids = llm.prompt_with_images(text, [TALL, WIDE][: text.count(QWEN_PICTURE)])
        request = Request(ids, sampling=Sampling(temperature=0.0), max_tokens=160, roll=True)
        llm.engine.add(request)
        rolled: list[tuple[list[int], list[int]]] = []
        while request.finish_reason is None:
            context = request.context_ids
            llm.engine.step()
            if request.context_ids is not context and request.num_dropped:
                for image in request.images:
                    row_ids = image_row_ids(image.key, image.num_rows)
                    assert request.context_ids[image.start : image.stop] == row_ids
                assert sum(map(is_image_id, request.context_ids)) == sum(each.num_rows for each in request.images)
                rolled.append((list(PromptIds(request.context_ids, request.images)), request.generated))
                fresh = PromptIds(request.context_ids, request.images)
        assert len(rolled) >= 2
        assert request.num_generated == 160
        after = request.generated[len(rolled[-1][1]) :]
        assert (
            llm.generate([fresh], SamplingParams(max_tokens=len(after), temperature=0.0, ignore_eos=True))[0].token_ids
            == after
        )


def test_more_pictures_than_the_context_holds(folder: Path) -> None:
    with (
        open_fresh(folder, max_context=64) as llm,
        pytest.raises(ContextOverflow, match=r"^image 3 of 4: the prompt is too long \(got 84 tokens"),
    ):
        llm.chat(say("What?", *[draw_picture(200, 100, seed=seed) for seed in range(4)]))


def test_a_picture_in_a_message_that_cannot_be_read(llm: LLM) -> None:
    with pytest.raises(RequestError, match=r"^message 0, part 1: image: "):
        llm.chat(say("What?", WIDE, b"<svg></svg>"))


def test_the_chat_template_is_prepared_once(llm: LLM) -> None:
    assert llm.template is llm.template  # a copy would have to find out again what it supports
    assert llm.chat_template(tools=True) is llm.chat_template(tools=True)


def test_text_that_looks_like_a_placeholder_is_text(llm: LLM) -> None:
    plain = llm.render(say(f"Is {QWEN_PICTURE} a picture?"))
    assert plain.images == ()
    ids = llm.chat_ids(llm.render(say(f"Is {QWEN_PICTURE} a picture?", TALL)))
    assert isinstance(ids, PromptIds)
    assert len(ids.images) == 1


def test_a_model_that_does_not_see_names_no_file_beside_it_that_does_not_fit(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "blind.gguf", Tiny("blind", {**LLAMA, "vocab_size": 260}, 1), more=vocabulary())
    (tmp_path / "blind-mmproj-f16.gguf").touch()
    with LLM(path, max_context=64) as llm, pytest.raises(RequestError, match="Load a model that does"):
        llm.chat(say("What?", TALL))


def test_pictures_are_embedded(llm: LLM) -> None:
    both = llm.embed("A text", images=[WIDE, TALL], pooling="last")
    assert both.shape == (3, 48)
    assert np.array_equal(both[1:], llm.embed(images=[WIDE, TALL], pooling="last"))
    assert np.array_equal(both[:1], llm.embed("A text", pooling="last"))
    assert np.abs(both[1] - both[2]).max() > 0.01
    with pytest.raises(ContextOverflow, match="set the option truncate, or raise the option max_context"):
        llm.embed(["A text", "long " * 2000])


def test_numbers_of_frames_become_pictures(llm: LLM) -> None:
    ids = llm.chat_ids(llm.render(say("What?", [TALL, TALL, WIDE])))
    assert isinstance(ids, PromptIds)
    assert ids.images[0].num_rows == ids.images[1].num_rows
    assert len(ids.images) == 3


def test_a_recording_with_images_is_not_replayed(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with open_fresh(folder, record=path) as llm:
        llm.generate([llm.prompt_with_images(f"{QWEN_PICTURE} x", [WIDE])], GREEDY)
    steps = [json.loads(line)["step"] for line in path.read_text().splitlines() if line.startswith('{"step"')]
    with pytest.raises(RequestError, match="it cannot be replayed"):
        Step.from_json(steps[0])


def test_adapters_and_images_share_a_step(folder: Path, llm: LLM, tmp_path: Path) -> None:
    random = np.random.RandomState(3)
    name = "model.layers.0.self_attn.q_proj"
    pair = random.normal(size=(4, 48)).astype(np.float32), random.normal(size=(48, 4)).astype(np.float32)
    adapter = write_peft(tmp_path / "style", {name: pair})
    plain = llm.generate([llm.prompt_with_images(TEXT, [WIDE, TALL])], GREEDY)[0]
    with open_fresh(folder, adapters=[adapter]) as adapted:
        ids = adapted.prompt_with_images(TEXT, [WIDE, TALL])
        params = [GREEDY, SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True, adapter="style")]
        first, second = adapted.generate([ids, ids], params)
        alone = adapted.generate([ids], params[1])[0]
    assert first.token_ids == plain.token_ids
    assert second.token_ids == alone.token_ids != plain.token_ids


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return FIRST["gemma3"].write(tmp_path_factory.mktemp("vision") / "gemma3")


def gemma_ids(llm: LLM, text: str) -> list[int]:
    return llm.prompt_with_images(text.replace("@", FIRST["gemma3"].picture), [WIDE] * text.count("@"))


def test_an_image_that_attends_both_ways_has_its_turn_beside_streams(gemma: Path) -> None:
    with open_fresh(gemma) as llm:
        ids = gemma_ids(llm, "@ What?")
        num_rows = ids.images[0].num_rows  # type: ignore[attr-defined]
        expected = llm.generate([ids], GREEDY)[0].token_ids
    with open_fresh(gemma, token_budget=num_rows, max_batch=2) as llm:
        engine = llm.engine
        stream = engine.add(request_of(llm.prompt_ids("A text"), 300))
        engine.step()
        seen = engine.add(request_of(gemma_ids(llm, "@ What?")))
        engine.run([seen])
        assert stream.num_generated < 150
        assert seen.generated == expected
        engine.cancel(stream)


def test_an_image_that_shorter_steps_do_not_hold_fails_alone(gemma: Path) -> None:
    with open_fresh(gemma) as llm:
        engine, runner, failures = llm.engine, llm.engine.runner, [MemoryShortage("none left")]
        run = runner.run

        def fail_once(step: Step, *more: Any) -> Any:
            if failures and step.num_tokens > 8:
                raise failures.pop()
            return run(step, *more)

        runner.run = fail_once  # type: ignore[method-assign]
        seen = engine.add(request_of(gemma_ids(llm, "@ What?")))
        text = engine.add(request_of(llm.prompt_ids("A text")))
        engine.scheduler.token_budget = 18
        engine.run([seen, text])
        assert (seen.finish_reason, text.finish_reason) == ("error", "length")
        assert "too many rows for a step" in str(seen.error)
        with pytest.raises(RequestError, match="too many rows for a step"):
            engine.add(request_of(gemma_ids(llm, "@ What?")))
