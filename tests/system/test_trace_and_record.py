"""Traces and recordings of a run: a trace shows its steps and ops, a recording comes out the same again."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hf_folders import write_model
from lora_files import random_pairs, write_peft
from sporelm import LLM, AsyncLLM, SamplingParams
from sporelm.api.trace_and_record import describe_engine
from sporelm.cli import replay
from sporelm.engine import Request
from sporelm.engine.recording_replay import Recording, Replay, ReplayResult
from sporelm.engine.trace import ENGINE_ROW, FIRST_THREAD_ROW
from sporelm.errors import RequestError
from system.processes import Spore, command, environment, one_line
from tiny_models import WIDE

GREEDY = SamplingParams(max_tokens=12, temperature=0.0)
WILD = SamplingParams(max_tokens=20, temperature=1.0, top_p=0.9, repetition_penalty=1.1, seed=7)
TEXT = "Once upon a time there was a little girl named Lily. She loved to play outside in the park. " * 6


def events(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return found


# ---- traces


@pytest.mark.parametrize("how", [{"threads": 2}, {"threads": 1, "eager": True}, {"backend": "reference"}])
def test_a_trace_shows_each_step_and_each_op(story: Path, tmp_path: Path, how: dict[str, Any]) -> None:
    with LLM(story, **how) as plain:
        wanted = [each.text for each in plain.generate(["Once upon a time", "The dog"], GREEDY)]
    with LLM(story, trace=tmp_path / "t.json", **how) as llm:
        assert [each.text for each in llm.generate(["Once upon a time", "The dog"], GREEDY)] == wanted
    found = events(tmp_path / "t.json")
    assert list(tmp_path.iterdir()) == [tmp_path / "t.json"]
    steps = [event for event in found if event["ph"] == "X" and event["name"].startswith("step ")]
    assert len(steps) == 12
    assert [step["args"]["sequences"] for step in steps] == [2] * 12
    assert all(step["args"]["requests"] == [1, 2] for step in steps)
    calls = [event for event in found if event["ph"] == "X" and event["tid"] >= FIRST_THREAD_ROW]
    assert {"attention", "argmax"} <= {event["name"].split()[0] for event in calls}
    products = [event for event in calls if event["name"].startswith("linear")]
    assert products
    assert all(event["args"]["weight"] and event["args"]["format"] for event in products)
    for event in calls:
        inside = [step for step in steps if step["ts"] - 50 <= event["ts"] <= step["ts"] + step["dur"] + 50]
        assert len(inside) >= 1, event
        assert event["args"]["tokens"] in {step["args"]["tokens"] for step in inside}
    phases = [(event["id"], event["name"]) for event in found if event["ph"] == "b"]
    assert sorted(phases) == sorted(
        (number, name) for number in (1, 2) for name in (f"request {number}", "queued", "prefill", "decode")
    )
    summary = llm.trace_and_record.summary
    assert summary is not None
    assert summary.steps == 12
    assert 0 < sum(seconds for _, seconds in summary.ops.values()) <= summary.parts["run"] * 1.01
    assert sum(summary.parts.values()) == pytest.approx(summary.seconds)


def test_the_parts_of_a_step_follow_each_other(story: Path, tmp_path: Path) -> None:
    with LLM(story, threads=1, trace=tmp_path / "t.json") as llm:
        llm.generate("Lily", GREEDY)
    row = [event for event in events(tmp_path / "t.json") if event["ph"] == "X" and event["tid"] == ENGINE_ROW]
    for at in range(0, len(row), 6):
        step, *parts = row[at : at + 6]
        assert [part["name"] for part in parts] == ["schedule", "fill", "run", "sample", "commit"]
        moment = step["ts"]
        for part in parts:
            assert part["ts"] == pytest.approx(moment, abs=0.01)
            moment = part["ts"] + part["dur"]
        assert moment == pytest.approx(step["ts"] + step["dur"], abs=0.01)


def test_requests_that_have_not_ended_are_in_the_trace(story: Path, tmp_path: Path) -> None:
    llm = LLM(story, threads=1, trace=tmp_path / "t.json")
    llm.engine.add(Request([1, 2, 3], max_tokens=5))
    llm.engine.step()
    llm.close()
    assert [event["ph"] for event in events(tmp_path / "t.json") if event.get("name") == "request 1"] == ["b", "e"]


def test_a_model_that_cannot_be_opened_leaves_no_files(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="none"):
        LLM(tmp_path / "none.gguf", trace=tmp_path / "t.json", record=tmp_path / "r.jsonl")
    (tmp_path / "notes").write_text("mine", encoding="utf-8")
    with pytest.raises(RequestError, match="is not a trace"):
        LLM(tmp_path / "none.gguf", trace=tmp_path / "notes", record=tmp_path / "r.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


def test_ops_of_adapters_are_named(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "tiny", WIDE)
    adapter = write_peft(tmp_path / "red", random_pairs(WIDE, 2, seed=1), 4.0)
    with LLM(folder, threads=1, adapters=[adapter], trace=tmp_path / "t.json", record=tmp_path / "r.jsonl") as llm:
        params = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
        llm.generate([[1, 9, 17], [1, 9, 18]], [params, replace(params, adapter="red")])
    found = {event["name"].split()[0] for event in events(tmp_path / "t.json") if event["ph"] == "X"}
    assert "add_lora" in found
    result = replayed(tmp_path / "r.jsonl", folder)
    assert result.stopped is not None
    assert "adapter 1, which a recording does not hold" in result.stopped
    result = replayed(tmp_path / "r.jsonl", folder, adapters=[adapter])
    assert (result.stopped, result.difference) == (None, None)
    assert result.steps > 0


# ---- recordings


def replayed(path: Path, model: Path, **more: Any) -> ReplayResult:
    """A recording, repeated by a model that was opened again."""
    recording = Recording(path)
    limits = recording.limits
    sizes = {"max_context": limits.max_context, "max_batch": limits.max_batch, "token_budget": limits.token_budget}
    with LLM(model, threads=1, kv=recording.about["kv"], **sizes, **more) as llm:
        assert llm.loaded_engine.identity == recording.about["model"]
        assert describe_engine(llm.loaded_engine)["target"] == recording.about["target"]
        return Replay(recording, llm.loaded_engine.worker).run()


def several(llm: LLM) -> None:
    """Different answers at once."""
    prompts = ["Once upon a time", "The dog", "Lily", TEXT]
    llm.generate(prompts, [WILD, GREEDY, SamplingParams(max_tokens=9, temperature=0.7, seed=3, mirostat=2), WILD])


def prefixes_and_forks(llm: LLM) -> None:
    """Prefixes that are found, answers that share pages, a conversation that goes back."""
    llm.generate(TEXT, GREEDY)
    llm.generate(TEXT + "Then", SamplingParams(max_tokens=30, temperature=1.0, seed=5, n=3))
    sequence = llm.engine.sequence()
    ids = llm.prompt_ids(TEXT[:300])
    for prompt in (ids, [*ids[:-3], 7, 8, 9]):
        llm.engine.run([llm.engine.add(Request(prompt, max_tokens=8, sequence=sequence))])
        child = llm.engine.fork(sequence)
        llm.engine.run([llm.engine.add(Request([*prompt, 5], max_tokens=8, sequence=child))])


def cancelled(llm: LLM) -> None:
    """A stream that is left in the middle of its answer, another within its prompt."""
    stream = llm.stream("Once upon a time", WILD)
    for _ in range(5):
        next(stream)
    other = llm.stream(TEXT, WILD)
    next(other)
    other.close()
    stream.close()
    llm.generate("The dog", WILD)


def embedded(llm: LLM) -> None:
    """Steps without sampling, whose pages are found afterwards."""
    llm.embed([TEXT, "a dog"])
    llm.logits(llm.prompt_ids(TEXT))
    llm.generate(TEXT, WILD)


def guessed(llm: LLM) -> None:
    """Guesses out of the text."""
    llm.generate(TEXT + TEXT, SamplingParams(max_tokens=40, temperature=0.0))


@pytest.mark.parametrize(
    ("work", "how"),
    [
        (several, {"max_batch": 3, "token_budget": 40}),
        (prefixes_and_forks, {}),
        (cancelled, {"token_budget": 16}),
        (embedded, {}),
        (guessed, {"speculate": "ngram"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_recorded_run_comes_out_the_same(
    story: Path, tmp_path: Path, work: Callable[[LLM], None], how: dict[str, Any]
) -> None:
    path = tmp_path / "r.jsonl"
    with LLM(story, threads=2, record=path, **how) as llm:
        work(llm)
        generated = llm.metrics.generation_tokens
    result = replayed(path, story)
    assert (result.difference, result.stopped, result.is_truncated) == (None, None, False)
    assert result.steps > 3
    assert result.num_sampled >= generated  # of a draft's tokens, some may come after an end


def test_preemptions_come_out_the_same(story: Path, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with LLM(story, threads=1, record=path, max_context=192, max_batch=4, kv_memory=200_000) as llm:
        prompts = [llm.prompt_ids(TEXT)[start : start + 60] for start in range(4)]
        llm.generate(prompts, SamplingParams(max_tokens=70, temperature=1.0, seed=3, ignore_eos=True))
        assert llm.metrics.preemptions > 0
    result = replayed(path, story)
    assert (result.difference, result.stopped) == (None, None)
    assert result.num_sampled == 4 * 70


def edited(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """The recording, each line changed."""
    lines = [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]
    for line in lines:
        change(line)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="ascii")
    return path


def test_a_step_that_fails_is_repeated_and_so_is_its_recording(
    story: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One failure after a step was computed, another while tokens were chosen."""
    with LLM(story, threads=1, record=tmp_path / "r.jsonl", trace=tmp_path / "t.json") as llm:
        sampling = SamplingParams(max_tokens=30, temperature=1.0, seed=4, ignore_eos=True)
        answers = [
            llm.prepare_generation(llm.prompt_ids(text), each) for text, each in (("Lily", sampling), ("Tom", GREEDY))
        ]
        for answer in answers:
            llm.engine.add(answer.request)
        for _ in range(3):
            llm.engine.step()
        with monkeypatch.context() as patch:
            patch.setattr(llm.engine.scheduler, "next_step", failing(llm.engine.scheduler.next_step))
            with pytest.raises(OSError, match="synthetic failure"):
                llm.engine.step()
        with monkeypatch.context() as patch:
            patch.setattr(llm.engine.sampler, "sample", failing(llm.engine.sampler.sample))
            with pytest.raises(OSError, match="synthetic failure"):
                llm.engine.step()
        llm.engine.run([answer.request for answer in answers])
        assert [answer.request.finish_reason for answer in answers] == ["error", "length"]
    result = replayed(tmp_path / "r.jsonl", story)
    assert (result.difference, result.stopped) == (None, None)
    found = [event for event in events(tmp_path / "t.json") if event["name"] == "request 1" and event["ph"] == "b"]
    assert [event["args"]["finish reason"] for event in found] == ["error"]


def failing(work: Callable[..., object]) -> Callable[..., object]:
    """Does the work, then fails."""

    def fail(*args: Any) -> None:
        work(*args)
        raise OSError("synthetic failure")

    return fail


@pytest.fixture
def recorded(story: Path, tmp_path: Path) -> Path:
    with LLM(story, threads=1, record=tmp_path / "r.jsonl") as llm:
        llm.generate(["Once upon a time", "The dog"], WILD)
    return tmp_path / "r.jsonl"


def test_the_first_difference_is_told(story: Path, recorded: Path) -> None:
    count = 0

    def other_token(line: dict[str, Any]) -> None:
        nonlocal count
        if "said" in line and (count := count + 1) == 4:
            line["said"][1][0] += 1

    result = replayed(edited(recorded, other_token), story)
    assert result.difference is not None
    assert result.difference.startswith("step 4, request 2: said [")
    assert result.steps == 4


def test_a_logit_that_differs_in_one_bit_is_told(story: Path, recorded: Path) -> None:
    def other_bit(line: dict[str, Any]) -> None:
        if "logits" in line:
            line["logits"][0] ^= 1 << 40

    result = replayed(edited(recorded, other_bit), story)
    assert result.difference is not None
    assert result.difference.startswith("step 1, row 0 (request 1): the logits' checksum was ")
    recording = Recording(recorded)
    with LLM(story, threads=1, max_context=recording.limits.max_context) as llm:
        lenient = Replay(recording, llm.loaded_engine.worker, compare_logits=False).run()
    assert lenient.difference is None


def test_what_came_from_a_file_ends_the_replay(talker: Path, tmp_path: Path) -> None:
    with LLM(talker, threads=1) as llm:
        conversation = llm.conversation()
        list(conversation.ask("Once upon a time", GREEDY))
        conversation.sleep(tmp_path / "asleep")
    with LLM(talker, threads=1, record=tmp_path / "r.jsonl") as llm:
        llm.generate("The dog", GREEDY)
        list(llm.wake(tmp_path / "asleep").ask("And then", GREEDY))
    result = replayed(tmp_path / "r.jsonl", talker)
    assert result.steps == 12
    assert result.stopped is not None
    assert "were filled from a file (a conversation woke)" in result.stopped


@pytest.mark.parametrize("damage", ['{"step": 5}', '{"said": 3}', '{"add": 1}', '{"other": 1}', "[]", '{"drop": []}'])
def test_a_damaged_recording_is_refused(story: Path, recorded: Path, damage: str) -> None:
    lines = recorded.read_text(encoding="ascii").splitlines()
    recorded.write_text("\n".join([*lines[:4], damage, *lines[4:]]) + "\n", encoding="ascii")
    with pytest.raises(RequestError, match=r"line 5 is damaged: [a-z]|line 5: |line 5 is not a JSON") as caught:
        replayed(recorded, story)
    assert "Error" not in str(caught.value)


# ---- the commands


def test_run_traces_and_records_and_replay_repeats(spore: Spore, story: Path, tmp_path: Path) -> None:
    words = ("run", story, "-p", "Once upon a time", "-n", "9", "--threads", "1")
    made = spore(*words, "--trace", "t.json", "--record", "r.jsonl")
    assert made.returncode == 0, made.stderr
    assert "9 steps, " in made.stderr
    assert "linear" in made.stderr
    assert len([event for event in events(tmp_path / "t.json") if event["name"].startswith("step")]) == 9
    again = spore("replay", story, "r.jsonl", "--threads", "1")
    assert again.returncode == 0, again.stderr
    assert "9 steps" in again.stdout
    assert "the results are the same" in again.stdout
    found = json.loads(spore("replay", story, "r.jsonl", "--json", "--eager").stdout)
    assert (found["same"], found["steps"], found["said"], found["compared_logits"]) == (True, 9, 9, True)

    edited(tmp_path / "r.jsonl", lambda line: line.update(best=[5]) if "best" in line else None)
    differs = spore("replay", story, "r.jsonl")
    assert differs.returncode == 1
    assert "the results differ. step 1, row 0 (request 1): the greatest logit was 5" in one_line(differs.stderr)


def test_a_replay_has_the_pages_of_the_recorded_run(story: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with LLM(story, threads=1, max_context=64, max_batch=1, kv_memory="16M", record=path) as llm:
        many = llm.engine.limits.num_pages
        llm.generate([[5 + number] * 63 for number in range(4)], SamplingParams(max_tokens=1))
    args = replay.make_parser().parse_args([str(story), str(path), "--threads", "1"])
    with replay.open_recorded_model(Recording(path), args) as again:
        assert again.engine.limits.num_pages == many
    with LLM(story, threads=1, max_context=64, max_batch=1) as usual:
        assert usual.engine.limits.num_pages < many, "otherwise nothing is shown"
    replay.run(args)


def test_replay_of_another_model(spore: Spore, story: Path, broken: Path, recorded: Path) -> None:
    refused = spore("replay", broken, recorded)
    assert refused.returncode == 1
    assert "is a recording of another model" in one_line(refused.stderr)
    for given, told in (
        (["r.jsonl"], "MODEL is missing: 'r.jsonl' is the recording"),
        ([story], "FILE, the recording, is missing"),
        ([], "MODEL and FILE, the recording, are missing"),
    ):
        wrong = spore("replay", *given)
        assert wrong.returncode == 2
        assert told in one_line(wrong.stderr)


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT for a single process on Windows")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_what_ends_a_run_leaves_whole_files(story: Path, tmp_path: Path, name: str) -> None:
    words = ("run", story, "-p", "Once", "-n", "200000", "--ignore-eos", "--threads", "1", "--roll")
    many = command(*words, "--trace", tmp_path / "t.json", "--record", tmp_path / "r.jsonl")
    process = subprocess.Popen(
        many, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8"
    )
    assert process.stdout is not None
    assert process.stdout.read(1)
    process.send_signal(getattr(signal, name))
    process.communicate(timeout=120)
    assert process.returncode == 128 + getattr(signal, name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.jsonl", "t.json"]
    assert any(event["name"] == "step 1" for event in events(tmp_path / "t.json"))
    assert replayed(tmp_path / "r.jsonl", story).difference is None


# ---- figures


def test_figures_of_models_and_event_loops(story: Path, tmp_path: Path) -> None:
    async def answers() -> dict[str, Any]:
        async with AsyncLLM(story, threads=1, trace=tmp_path / "t.json") as llm:
            await asyncio.gather(*(llm.generate(text, GREEDY) for text in ("Lily", "Tom")))
            return llm.metrics.snapshot()

    with LLM(story, threads=1) as llm:
        llm.generate(["Lily", "Tom"], GREEDY)
        plain = llm.metrics.snapshot()
    found = asyncio.run(answers())
    assert found.keys() == plain.keys()
    for name in ("vllm:generation_tokens_total", "vllm:prompt_tokens_total", "vllm:request_success_total"):
        assert found[name] == plain[name]
    assert found["vllm:generation_tokens_total"]["samples"] == [{"labels": {}, "value": 24}]
    assert any(event["name"] == "step 1" for event in events(tmp_path / "t.json"))


def test_a_trace_and_a_recording_are_two_files(shared: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"trace and record are both .*one: give two different files"):
        LLM(shared / "data" / "story", trace=tmp_path / "one", record=str(tmp_path / "." / "one"))
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on the size of files")
@pytest.mark.parametrize("words", [["run", "-p", "Once", "-n", "200"], ["bench", "-p", "0", "-n", "64", "--repeat=1"]])
@pytest.mark.parametrize("option", ["--trace", "--record"])
def test_what_could_not_be_written_is_exit_code_1(story: Path, tmp_path: Path, words: list[str], option: str) -> None:
    import resource

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))

    line = command(words[0], story, *words[1:], option, "written")
    done = subprocess.run(
        line, env=environment(), cwd=tmp_path, preexec_fn=limit, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert done.stdout.strip(), "the work is done all the same"
    assert "written: File too large" in done.stderr or "ends early: File too large" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_recording_at_its_limit_is_not_a_failure(
    story: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LLM(story, threads=1, record=tmp_path / "r.jsonl") as llm:
        assert llm.trace_and_record.recording is not None
        llm.trace_and_record.recording.max_bytes = 2000
        llm.generate("Once", SamplingParams(max_tokens=50))
    assert "as many as it may have" in " ".join(llm.trace_and_record.notes())
    assert not llm.trace_and_record.has_failed
