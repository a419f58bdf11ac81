"""Conversations: the computation of each turn, forks, rewinds, interruptions; with a synthetic template."""

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from available import BACKENDS, open_available
from copied import copied
from sporelm import LLM, Completion, Conversation, SamplingParams, pipeline
from sporelm.engine import ModelOutput, Step
from sporelm.errors import ContextOverflow, ModelFileError, RequestError

# Messages stand between tokens of their own, as chat formats do it, so that no word crosses from one to the next.
TEMPLATE = """{% for message in messages %}<s>{{ message['content'] }}</s>{% endfor %}<s>"""
STORY_TEMPLATE = """{% for message in messages %}<|start_story|>{{ message['content'] }}{% endfor %}<|start_story|>"""
TURNS = [
    "Once upon a time",
    "The dog",
    "Why?",
    "Lily was sad",
    "Tom said no",
    "And then",
    "A bird came",
    "It was big",
    "Ben ran",
    "The end",
]
GREEDY = SamplingParams(max_tokens=12, temperature=0.0)
UNUSED = count()


@pytest.fixture(scope="module")
def folder(story: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The story's weights, a chat template, and a tokenizer that has one way only to write a text.

    Bytes are tokens, and every other id is a Chinese character: whatever the model says, as long as it is characters,
    is what the tokenizer would make of its text.
    """
    folder = tmp_path_factory.mktemp("chat") / "letters"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(story / name, folder / name)
    # Bytes that are half a character have the last ids, which the model is not seen to say.
    letters = [letter for letter in pre_tokenizers.ByteLevel.alphabet() if letter.isascii() or letter in "ĠĊ"]
    rest = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - set(letters))
    vocab = {token: number for number, token in enumerate(["<unk>", "<s>", "</s>", *sorted(letters)])}
    fillers = range(len(vocab), 2048 - len(rest))
    vocab |= {chr(0x4E00 + number): number for number in fillers}
    vocab |= {token: 2048 - len(rest) + number for number, token in enumerate(rest)}
    made = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    made.add_tokens([AddedToken(chr(0x4E00 + number), normalized=False) for number in fillers])
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def words_folder(story: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The story model with its own tokenizer, whose special tokens are now found inside a text, and a chat template."""
    folder = copied(story, tmp_path_factory.mktemp("chat") / "words")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    for token in tokenizer["added_tokens"]:
        token["normalized"] = False
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "chat_template.jinja").write_text(STORY_TEMPLATE)
    return folder


@pytest.fixture(scope="module", params=BACKENDS)
def llm(request: pytest.FixtureRequest, folder: Path) -> Iterator[LLM]:
    open_available(request.param).close()
    with LLM(folder, backend=request.param, threads=1) as made:
        yield made


@pytest.fixture
def conversation(llm: LLM) -> Iterator[Conversation]:
    made = llm.conversation()
    yield made
    made.close()
    llm.engine.check_integrity()


def say(conversation: Conversation, text: str, params: SamplingParams = GREEDY) -> Completion:
    """One turn, to its end."""
    pieces = list(conversation.ask(text, params))
    completion = pieces[-1].completion
    assert completion is not None
    assert "".join(piece.text for piece in pieces) == completion.text
    return completion


def fresh(llm: LLM, conversation: Conversation) -> Completion:
    """The last answer of a conversation, computed without anything kept."""
    ids = llm.chat_ids(llm.render(conversation.messages[:-1]))
    return llm.generate([ids], replace(GREEDY, salt=f"fresh {next(UNUSED)}"))[0]


def test_ten_turns_compute_only_what_is_new_and_equal_a_fresh_rendering(llm: LLM, conversation: Conversation) -> None:
    held = 0
    for turn in TURNS:
        completion = say(conversation, turn)
        # The last token of an answer is known and was never an input.
        assert completion.cached_tokens == held
        again = fresh(llm, conversation)
        assert completion.prompt_token_ids == again.prompt_token_ids
        assert completion.token_ids == again.token_ids
        assert again.cached_tokens == 0
        held = len(completion.prompt_token_ids) + len(completion.token_ids) - 1
    assert [message["role"] for message in conversation.messages] == ["user", "assistant"] * 10


def test_a_system_message_comes_first(llm: LLM) -> None:
    made = llm.conversation("Be kind.")
    say(made, TURNS[0])
    assert made.messages[0] == {"role": "system", "content": "Be kind."}
    assert llm.render(made.messages[:1]).text == "<s>Be kind.</s><s>"
    made.close()


def test_an_answer_of_other_tokens_than_the_tokenizer_would_take_is_kept(words_folder: Path) -> None:
    with LLM(words_folder, backend="reference") as llm:
        conversation = llm.conversation()
        wild = SamplingParams(max_tokens=30, temperature=40.0, top_k=0, top_p=1.0, seed=4)
        first = say(conversation, TURNS[0], wild)
        known = first.prompt_token_ids + first.token_ids
        assert llm.chat_ids(llm.render(conversation.messages))[: len(known)] != known
        second = say(conversation, TURNS[1])
        assert second.prompt_token_ids[: len(known)] == known
        turn = f"<|start_story|>{TURNS[1]}<|start_story|>"
        assert second.prompt_token_ids[len(known) :] == llm.tokenizer.encode(turn, add_special_tokens=False)
        assert second.cached_tokens == len(known) - 1


def test_a_fork_goes_its_own_way_from_shared_pages(llm: LLM, conversation: Conversation) -> None:
    say(conversation, TURNS[0])
    pool = llm.engine.kv_cache.pages
    free = pool.num_free
    child = conversation.fork()
    assert pool.num_free == free
    left, right = say(conversation, TURNS[1]), say(child, TURNS[2])
    assert left.cached_tokens == right.cached_tokens > 0
    assert left.token_ids == fresh(llm, conversation).token_ids
    assert right.token_ids == fresh(llm, child).token_ids
    assert conversation.messages[:2] == child.messages[:2]
    assert conversation.messages[2] != child.messages[2]
    child.messages[0]["content"] = "changed"
    assert conversation.messages[0]["content"] == TURNS[0]
    child.close()
    assert say(conversation, TURNS[3]).token_ids == fresh(llm, conversation).token_ids


def test_revert_keeps_the_first_messages_and_what_they_cost(llm: LLM, conversation: Conversation) -> None:
    first = say(conversation, TURNS[0])
    say(conversation, TURNS[1])
    say(conversation, TURNS[2])
    conversation.revert(2)
    assert len(conversation.messages) == 2
    again = say(conversation, TURNS[3])
    assert again.cached_tokens >= len(first.prompt_token_ids) + len(first.token_ids) - 1
    assert again.token_ids == fresh(llm, conversation).token_ids
    conversation.revert(0)
    assert say(conversation, TURNS[0]).token_ids == first.token_ids
    for wrong in (-1, 3):
        with pytest.raises(RequestError, match=f"revert to message {wrong}: there are 2"):
            conversation.revert(wrong)


def test_of_a_long_dialog_only_the_later_renderings_are_kept(
    llm: LLM, conversation: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = say(conversation, TURNS[0])
    say(conversation, TURNS[1])
    assert len(conversation._prefixes) == 2
    monkeypatch.setattr("sporelm.api.conversation.MAX_PREFIX_CHARS", 100)
    for turn in TURNS[2:5]:
        assert say(conversation, turn).token_ids == fresh(llm, conversation).token_ids
    assert len(conversation._prefixes) == 1
    conversation.revert(2)
    assert say(conversation, TURNS[1]).token_ids == fresh(llm, conversation).token_ids
    conversation.revert(0)
    assert say(conversation, TURNS[0]).token_ids == first.token_ids


def test_closing_the_iterator_keeps_the_partial_answer(llm: LLM, conversation: Conversation) -> None:
    stream = conversation.ask(TURNS[0], GREEDY)
    parts = [next(stream).text for _ in range(4)]
    stream.close()
    assert conversation.messages[1] == {"role": "assistant", "content": "".join(parts)}
    assert llm.engine.scheduler.is_idle
    after = say(conversation, TURNS[1])
    assert after.cached_tokens >= 6 + 3
    assert after.token_ids == fresh(llm, conversation).token_ids


def test_an_answer_that_is_not_begun_leaves_nothing(llm: LLM, conversation: Conversation) -> None:
    conversation.ask(TURNS[0], GREEDY)
    assert conversation.messages == []
    assert llm.engine.scheduler.is_idle


def test_an_answer_cut_at_a_stop_string_stays_cut_in_the_history(llm: LLM, conversation: Conversation) -> None:
    whole = llm.chat([{"role": "user", "content": TURNS[0]}], GREEDY).text
    completion = say(conversation, TURNS[0], replace(GREEDY, stop=[whole[6:8]]))
    assert (completion.text, completion.finish_reason) == (whole[:6], "stop")
    assert conversation.messages[1]["content"] == completion.text
    after = say(conversation, TURNS[1])
    assert after.prompt_token_ids == llm.chat_ids(llm.render(conversation.messages[:-1]))
    assert after.cached_tokens > len(completion.prompt_token_ids)
    assert after.token_ids == fresh(llm, conversation).token_ids


def test_too_long_a_turn_is_refused_and_changes_nothing(conversation: Conversation) -> None:
    say(conversation, TURNS[0])
    messages = list(conversation.messages)
    with pytest.raises(ContextOverflow, match="holds 512"):
        conversation.ask("big dog " * 600, GREEDY)
    assert conversation.messages == messages
    say(conversation, TURNS[1])


def test_one_answer_at_a_time(conversation: Conversation) -> None:
    stream = conversation.ask(TURNS[0], GREEDY)
    next(stream)
    with pytest.raises(RequestError, match="still answering"):
        next(conversation.ask(TURNS[1], GREEDY))
    for change in (conversation.close, lambda: conversation.revert(0)):
        with pytest.raises(RequestError, match="still answering"):
            change()
    stream.close()


def test_a_closed_conversation_says_so(llm: LLM) -> None:
    made = llm.conversation()
    say(made, TURNS[0])
    made.close()
    made.close()
    with pytest.raises(RequestError, match="conversation was closed"):
        made.ask(TURNS[1])
    assert len(made.messages) == 2


def test_logits_that_are_not_numbers_fail_that_answer_only(llm: LLM, conversation: Conversation) -> None:
    say(conversation, TURNS[0])
    worker = llm.engine.runner

    class Broken:
        def run(self, step: Step) -> ModelOutput:
            scores = worker.run(step)
            return ModelOutput(np.full_like(scores.argmax, -1), np.full_like(scores.logits, np.nan))

    llm.engine.runner = Broken()
    failed = say(conversation, TURNS[1])
    (other,) = llm.generate(TURNS[0], SamplingParams(seed=1))
    llm.engine.runner = worker
    for completion in (failed, other):
        assert (completion.finish_reason, completion.text, completion.token_ids) == ("error", "", [])
        assert "logits are not numbers" in (completion.error or "")
    assert len(conversation.messages) == 2  # a failed turn is not kept
    assert say(conversation, TURNS[1]).token_ids == fresh(llm, conversation).token_ids


def test_chat_without_a_conversation_reuses_what_it_shares_with_the_last_call(llm: LLM) -> None:
    messages = [{"role": "user", "content": TURNS[0]}]
    first = llm.chat(messages, GREEDY)
    messages += [{"role": "assistant", "content": first.text}, {"role": "user", "content": TURNS[1]}]
    second = llm.chat(messages, GREEDY)
    assert second.cached_tokens >= len(first.prompt_token_ids)
    assert second.token_ids == llm.generate([second.prompt_token_ids], GREEDY)[0].token_ids
    streamed = list(llm.chat_stream(messages, GREEDY))
    assert streamed[-1].completion is not None
    assert streamed[-1].completion.text == second.text


def test_a_pipeline_fills_in_the_template(folder: Path) -> None:
    with pipeline(folder, backend="reference") as pipe:
        texts = pipe([TURNS[0], [{"role": "user", "content": TURNS[1]}]], request_output_len=8, temperature=0.0)
        chats = [pipe.llm.chat([{"role": "user", "content": turn}], GREEDY).text for turn in TURNS[:2]]
        assert all(chat.startswith(response.text) for chat, response in zip(chats, texts, strict=True))
        with pytest.raises(RequestError, match="messages need the chat template"):
            pipe([[{"role": "user", "content": "Hi"}]], do_preprocess=False)


def test_a_conversation_sleeps_in_a_file_and_goes_on_elsewhere(
    llm: LLM, folder: Path, conversation: Conversation, tmp_path: Path
) -> None:
    for turn in TURNS[:3]:
        last = say(conversation, turn)
    held = len(last.prompt_token_ids) + len(last.token_ids) - 1
    child = conversation.fork()
    path = tmp_path / "talk.session"
    free = llm.engine.kv_cache.pages.num_free
    assert conversation.sleep(path) == path.stat().st_size
    assert llm.engine.kv_cache.pages.num_free >= free
    with pytest.raises(RequestError, match="was closed"):
        conversation.ask("More")
    awake = say(child, TURNS[3])
    child.close()
    with LLM(folder, backend=llm.backend.name, threads=1, max_batch=2) as other:
        woken = other.wake(path)
        assert [message["content"] for message in woken.messages[::2]] == TURNS[:3]
        after = say(woken, TURNS[3])
        assert (after.cached_tokens, after.token_ids) == (held, awake.token_ids)
        assert after.token_ids == fresh(other, woken).token_ids
        woken.close()


def test_a_file_that_holds_no_conversation_is_refused(llm: LLM, tmp_path: Path) -> None:
    for number, notes in enumerate(
        ({}, {"messages": [{"role": 1}], "told": []}, {"messages": [], "told": [[1, 2, 3]]})
    ):
        sequence = llm.engine.sequence()
        path = tmp_path / str(number)
        llm.engine.save_session(sequence, path, llm.loaded_engine.identity, notes)
        llm.engine.drop(sequence)
        count = len(llm.engine.kv_cache.sequences)
        with pytest.raises(ModelFileError, match="is not a saved conversation"):
            llm.wake(path)
        assert len(llm.engine.kv_cache.sequences) == count


@pytest.mark.parametrize("parts", [False, True])
def test_positions_count_in_the_users_text_and_not_in_the_template(llm: LLM, parts: bool) -> None:
    for text, what in (
        ("ab\ud800", "half of a surrogate pair, U+D800 at position 2"),
        ("a\udcff", "0xFF at position 1"),
    ):
        content = [{"type": "text", "text": text}] if parts else text
        with pytest.raises(RequestError, match=f"message 1: its content contains .*{re.escape(what)}"):
            llm.chat([{"role": "system", "content": "x"}, {"role": "user", "content": content}])
