"""A model with recurrent states in use: conversations, files, drafts, a server. What is said is what is said alone."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from families import write_case
from families.recurrent import CASES
from hf_folders import tokenizer_json, write_tokenizer
from sporelm import LLM, Completion, SamplingParams
from sporelm.errors import MemoryShortage
from sporelm.serve.serve_config import ModelSpec, ServeConfig
from system.serve.running_server import run_server, server_options
from system.test_generation_chat import TEMPLATE, say

WORDS = "a dog it is so no " * 10  # some 200 tokens
FEW = SamplingParams(max_tokens=12, temperature=0.0)
UNUSED = count()


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen3-Next with a tokenizer, a chat template and a longer context."""
    case = next(case for case in CASES if case.name == "qwen3next")
    longer = {"max_position_embeddings": 1024, "vocab_size": 320}
    place = write_case(tmp_path_factory.mktemp("hybrid"), replace(case, config=case.config | longer))
    write_tokenizer(place, tokenizer_json(320), chat_template=TEMPLATE)
    return place


@pytest.fixture(scope="module")
def llm(hybrid: Path) -> Iterator[LLM]:
    with LLM(hybrid, threads=1) as made:
        yield made
        made.engine.check_integrity()


def generate_uncached(llm: LLM, said: Completion) -> list[int]:
    """Return the output for a completion's prompt without cached prefixes."""
    (done,) = llm.generate([said.prompt_token_ids], replace(FEW, salt=f"fresh {next(UNUSED)}"))
    assert done.cached_tokens == 0
    return done.token_ids


def count_held(said: Completion) -> int:
    """Return the tokens that a conversation holds after an answer."""
    return len(said.prompt_token_ids) + len(said.token_ids) - 1


def test_a_conversation_computes_its_new_words_alone(llm: LLM, tmp_path: Path) -> None:
    talk = llm.conversation()
    first = say(talk, WORDS, FEW)
    second = say(talk, "no", FEW)
    child = talk.fork()
    third, other = say(talk, "it is", FEW), say(child, "a dog", FEW)
    assert [each.cached_tokens for each in (second, third, other)] == [
        count_held(first),
        count_held(second),
        count_held(second),
    ]
    talk.revert(2)
    again = say(talk, "so", FEW)
    assert 0 < again.cached_tokens < len(first.prompt_token_ids), "back to a kept state"
    child.sleep(tmp_path / "child.session")
    woken = llm.wake(tmp_path / "child.session")
    last = say(woken, "no", FEW)
    assert last.cached_tokens == count_held(other)
    for each in (first, second, third, other, again, last):
        assert each.token_ids == generate_uncached(llm, each)
    talk.close()
    woken.close()


def test_the_whole_text_sent_again_is_found_up_to_its_newest_state(llm: LLM) -> None:
    (first,) = llm.generate([WORDS], replace(FEW, max_tokens=150))
    (second,) = llm.generate([[*first.prompt_token_ids, *first.token_ids, 5, 6]], FEW)
    assert second.cached_tokens == count_held(first) // 64 * 64
    cut = [*first.prompt_token_ids[:100], 5, 6]
    (third,) = llm.generate([cut], FEW)
    assert third.cache_miss is not None
    assert third.cache_miss.startswith("no state kept between tokens 0 and ")
    for each in (second, third):
        assert each.token_ids == generate_uncached(llm, each)


@pytest.mark.parametrize("how", [{"speculate": "ngram"}, {"draft_model": "itself"}, {"kv_memory": "900kB"}])
def test_options_change_nothing_of_what_is_said(hybrid: Path, llm: LLM, how: dict[str, str]) -> None:
    given = {name: str(hybrid) if value == "itself" else value for name, value in how.items()}
    long = replace(FEW, max_tokens=60)
    with LLM(hybrid, threads=1, max_batch=4, **given) as other:
        for prompt in (WORDS, WORDS[3:], "no"):
            assert other.generate([prompt], long)[0].token_ids == llm.generate([prompt], long)[0].token_ids
        other.engine.check_integrity()


def test_states_are_counted_where_memory_is_given(hybrid: Path) -> None:
    with LLM(hybrid, threads=1, max_batch=4, kv_memory="900kB") as llm:
        limits, worker = llm.engine.limits, llm.loaded_engine.worker
        state = sum(array[0].nbytes for array in worker.export_states([0]))
        page = sum(layer[0].nbytes for layer in worker.export_pages([0]))
        assert 1 < limits.num_states <= 16
        assert limits.num_states * state + limits.num_pages * page <= 900_000
    with pytest.raises(MemoryShortage, match="a recurrent state needs"):
        LLM(hybrid, threads=1, kv_memory="1kB")
    with pytest.raises(MemoryShortage, match="of it for recurrent states: give more"):
        LLM(hybrid, threads=1, kv_memory=f"{state + page // 2}")


def test_a_server_has_everything_for_it_too(hybrid: Path, tmp_path: Path) -> None:
    models = (ModelSpec("hybrid", str(hybrid)),)
    config = ServeConfig(models=models, session_dir=tmp_path, max_sessions=1, **server_options())

    def infer(session: str, text: str, place: int) -> tuple[str, str]:
        body = {"messages": [{"role": "user", "content": text}], "encoding": "text", "temperature": 0, "max_tokens": 8}
        found = client.post("/infer", json=body | {"session_id": session, "dialog_pos": place})
        assert found.status_code == 200, found.text
        return found.headers["x-dialog-pos"], found.text

    def cached(prompt: str) -> int:
        asked = {"model": "hybrid", "prompt": prompt, "max_tokens": 5, "temperature": 0}
        usage = client.post("/v1/completions", json=asked).json()["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"]

    running, stop = run_server(config)
    client = running.client()
    try:
        assert (cached(WORDS), cached(WORDS) > 100) == (0, True)
        first = infer("a", WORDS, 0)
        assert client.post("/fork", json={"session_id": "a", "new_session_id": "b"}).status_code == 200
        ours, theirs = infer("a", "no", 2), infer("b", "no", 2)  # each time one falls asleep
        assert ours == theirs == ("4", ours[1])
        assert infer("c", WORDS, 0) == first
        assert client.post("/drop", json={"session_id": "c"}).status_code == 200
        metrics = client.get("/metrics").text
        assert 'sporelm:recurrent_states{model_name="hybrid",use="kept"}' in metrics
        last = infer("a", "so", 4)
    finally:
        stop()
    running, stop = run_server(config)
    client = running.client()
    try:
        assert infer("b", "so", 4) == last, "woken by the next server"
    finally:
        stop()
