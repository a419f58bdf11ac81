"""The options of answers, as a user gives them; and that what else runs changes no answer."""

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sporelm.text.grammar.grammar_matcher
from sporelm import LLM, AsyncLLM, Grammar, SamplingParams
from sporelm.cli import run
from sporelm.cli.sampling_options import parse_sampling
from sporelm.errors import RequestError
from system.processes import Spore, one_line

MANY: list[dict[str, Any]] = [
    {"top_k": 0, "top_p": 1.0},
    {"min_p": 0.05, "presence_penalty": 0.5},
    {"typical_p": 0.8, "frequency_penalty": 0.3},
    {"xtc_probability": 0.5, "xtc_threshold": 0.05},
    {"mirostat": 1, "mirostat_tau": 3.0},
    {"mirostat": 2, "mirostat_tau": 4.0},
    {"dry_multiplier": 0.8, "dry_allowed_length": 1, "dry_breakers": ("\n",)},
    {"logit_bias": {201: 2.0}, "repetition_penalty": 1.2},
    {"min_tokens": 5, "logprobs": 2, "top_k": 10},
    {"grammar": Grammar(regex=r"( [a-z]{2,8}){3,9}\.")},
    {"temperature": 0.0},
]


@pytest.fixture(scope="module")
def llm(story: Path) -> Iterator[LLM]:
    with LLM(story, threads=1) as made:
        yield made


def wish(number: int) -> SamplingParams:
    return SamplingParams(**({"max_tokens": 24, "temperature": 1.1, "seed": 40 + number} | MANY[number]))


def test_no_answer_depends_on_its_company(llm: LLM) -> None:
    """Together in one order, together in another one with fewer, and alone."""
    prompts = [f"Once upon a time {'there ' * number}" for number in range(len(MANY))]
    wishes = [wish(number) for number in range(len(MANY))]
    together = [answer.token_ids for answer in llm.generate(prompts, wishes)]
    some = [answer.token_ids for answer in llm.generate(prompts[::-2], wishes[::-2])]
    assert some == together[::-2]
    assert together == [llm.generate(prompt, each)[0].token_ids for prompt, each in zip(prompts, wishes, strict=True)]
    assert len({tuple(ids) for ids in together}) == len(MANY)


def test_several_answers_compute_their_prompt_once(llm: LLM) -> None:
    prompt = "A prompt of its own: " * 8
    ids = llm.prompt_ids(prompt)
    (answer,) = llm.generate(prompt, SamplingParams(max_tokens=4, temperature=1.0, seed=1, n=5))
    assert answer.cached_tokens == 0
    assert [each.cached_tokens for each in answer.alternatives] == [len(ids) - 1] * 4
    assert [each.seed for each in answer.alternatives] == [2, 3, 4, 5]


@pytest.mark.parametrize(("name", "value"), [("logit_bias", {10**6: 1.0}), ("stop_token_ids", [10**6])])
def test_tokens_that_the_model_does_not_have_are_refused(llm: LLM, name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=f"{name} has token 1000000: the model's tokens are 0 to"):
        llm.generate("Once", SamplingParams(**{name: value}))


def test_a_grammar_that_is_being_compiled_does_not_hold_up_others(story: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other answers begin and end while one compiles; then that one comes too."""
    go_on, threads = threading.Event(), []
    compiled = sporelm.text.grammar.grammar_matcher.CompiledGrammar.__init__

    def slow(self: Any, *args: Any) -> None:
        threads.append(threading.current_thread().name)
        assert go_on.wait(60)
        compiled(self, *args)

    monkeypatch.setattr(sporelm.text.grammar.grammar_matcher.CompiledGrammar, "__init__", slow)

    async def both() -> tuple[str, str]:
        async with AsyncLLM(story, threads=1) as many:
            waiting = asyncio.ensure_future(
                many.generate("One", SamplingParams(max_tokens=20, grammar=Grammar(choice=["one", "two"])))
            )
            free = await many.generate("Once", SamplingParams(max_tokens=8, temperature=0.0))
            assert not waiting.done()
            go_on.set()
            return free.finish_reason, (await waiting).text

    reason, text = asyncio.run(both())
    assert reason == "length"
    assert text in ("one", "two")
    assert threads != ["engine"]


def test_every_option_reaches_the_parameters(story: Path, spore: Spore) -> None:
    words = ["--typical-p", 0.9, "--xtc-probability", 0.1, "--xtc-threshold", 0.2, "--presence-penalty", 0.1]
    words += ["--frequency-penalty", 0.1, "--dry-multiplier", 0.5, "--dry-base", 2, "--dry-allowed-length", 3]
    words += [
        "--dry-range",
        50,
        "--dry-breaker",
        "x",
        "--min-tokens",
        2,
        "--logit-bias",
        "5=-3",
        "--logit-bias",
        "6=1.5",
    ]
    words += ["--stop-token-id", 3, "--seed", 5, "--min-p", 0.01, "--logprobs", 2, "--num-answers", 2, "--best-of", 3]
    done = spore("run", story, "-p", "Once upon a time", "-n", 6, "--json", *words)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found["logprobs"]) == len(found["token_ids"])
    assert set(found["logprobs"][0]) == {"id", "logprob", "top"}
    assert len(found["logprobs"][0]["top"]) == 2
    (other,) = found["alternatives"]
    assert set(other) == {"text", "token_ids", "finish_reason", "seed", "logprobs"}
    assert {found["seed"], other["seed"]} < {5, 6, 7}
    assert found["cached_tokens"] == 0 or found["seed"] > 5
    assert "cache_miss" in found


def test_answers_have_lines_between_them(story: Path, spore: Spore) -> None:
    words = ["--choice", "yes", "--choice", "no", "--num-answers", 3]
    done = spore("run", story, "-p", "Is it? ", "-n", 20, *words)
    assert done.returncode == 0, done.stderr
    answers = done.stdout.removesuffix("\n").split("\n---\n")
    assert len(answers) == 3
    assert set(answers) <= {"yes", "no"}


def test_forms_come_from_files_and_words(tmp_path: Path) -> None:
    schema, lark = tmp_path / "schema.json", tmp_path / "form.lark"
    schema.write_text('{"enum": ["a"]}', encoding="utf-8")
    lark.write_text('start: "a" | "b"', encoding="utf-8")
    forms = {
        ("--json-schema", str(schema)): Grammar(json_schema='{"enum": ["a"]}'),
        ("--json-schema", '{"enum": ["c"]}'): Grammar(json_schema='{"enum": ["c"]}'),
        ("--lark", str(lark)): Grammar(lark='start: "a" | "b"'),
        ("--regex", "[ab]"): Grammar(regex="[ab]"),
        ("--choice", "a", "--choice", "b"): Grammar(choice=["a", "b"]),
    }
    for words, wanted in forms.items():
        assert parse_sampling(run.make_parser().parse_args(["-p", "a", *words])).grammar == wanted


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--choice", "a", "--regex", "b"], "regex, choice are given together"),
        (["--json-schema", "{"], "json_schema is not valid JSON"),
        (["--json-schema", "nowhere.json"], "the JSON schema 'nowhere.json' cannot be read"),
        (["--logprobs", "3"], "add --json"),
        (["--num-answers", "2", "--temp", "0"], "2 answers at --temp 0 are all the same"),
        (["--num-answers", "3", "--best-of", "2"], "best_of is 2"),
        (["--mirostat", "2", "--min-p", "0.1"], "leave out min_p, or mirostat"),
        (["--min-tokens", "300"], "min_tokens is 300"),
        (["--logit-bias", "5"], "must be ID=BIAS"),
        (["--logit-bias", "5=1", "--logit-bias", "5=2"], "names a token twice"),
        (["--typical-p", "0"], "typical_p is 0"),
        (["--dry-base", "0.5"], "dry_base is 0.5"),
    ],
)
def test_what_contradicts_is_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    from sporelm.cli.main import main

    try:
        code = main(["run", "nowhere.gguf", "-p", "a", *words])
    except SystemExit as left:
        code = int(str(left.code))
    told = capsys.readouterr().err
    assert message in one_line(told)
    assert code in (1, 2) if "cannot be read" in told else code == 2


def test_true_is_a_schema_and_no_file() -> None:
    params = parse_sampling(run.make_parser().parse_args(["-p", "a", "--json-schema", " true"]))
    assert params.grammar == Grammar(json_schema=" true")
