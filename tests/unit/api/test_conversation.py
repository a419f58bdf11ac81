"""Pictures in conversations: kept over turns, forks, reverts and session files, and never computed twice."""

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from imatrix_models import vocabulary
from qwen_vision import IDS, IMAGE_PAD, tiny_model, write_folder
from sporelm import LLM, SamplingParams
from sporelm.api import conversation_images
from sporelm.api.conversation import Conversation, read_messages
from sporelm.engine.kv import session_io
from sporelm.engine.prompt_images import IMAGE_IDS, PromptIds, is_image_id
from sporelm.errors import ModelFileError, RequestError
from tiny_files import write_gguf
from tiny_models import LLAMA, Tiny
from vision_folders import draw_picture

pytest.importorskip("torch", reason="makes a model of transformers")
pytest.importorskip("transformers", reason="makes a model of transformers")

PARAMS = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)
PICTURE, OTHER = draw_picture(50, 40), draw_picture(30, 70, 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("qwen"), tiny_model("qwen2vl", 0))


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(folder, backend="reference", kv="f32", max_context=512) as opened:
        yield opened


def say(conversation: Conversation, text: str, *images: object):
    *_, last = conversation.ask(text, PARAMS, images)
    return last.completion


def num_computed(llm: LLM) -> int:
    assert llm.engine.image_encoder is not None
    return llm.engine.image_encoder.num_computed


def image_rows(ids: list[int]) -> int:
    return sum(is_image_id(token) or token == IDS[IMAGE_PAD] for token in ids)


def test_a_turn_shows_pictures_and_later_ones_do_not_compute_them_again(llm: LLM) -> None:
    conversation = llm.conversation()
    first = say(conversation, "What is it?", PICTURE)
    assert image_rows(first.prompt_token_ids) > 0
    parts = conversation.messages[0]["content"]
    assert [part["type"] for part in parts] == ["image", "text"]
    assert np.array_equal(np.asarray(Image.open(BytesIO(parts[0]["image"]))), PICTURE)
    before = num_computed(llm)
    second = say(conversation, "And now?")
    assert num_computed(llm) == before
    assert second.cached_tokens >= len(first.prompt_token_ids)
    third = say(conversation, "Compare.", OTHER)
    assert num_computed(llm) == before + 1
    assert third.cached_tokens >= len(second.prompt_token_ids)
    assert third.token_ids == llm.chat(conversation.messages[:-1], PARAMS).token_ids
    conversation.close()


def test_a_fork_and_a_revert_keep_their_pictures(llm: LLM) -> None:
    conversation = llm.conversation("Be brief.")
    say(conversation, "Look.", PICTURE)
    child = conversation.fork()
    before = num_computed(llm)
    here, there = say(conversation, "More."), say(child, "More.")
    assert here.token_ids == there.token_ids
    assert there.cached_tokens > 0
    child.revert(1)
    assert child.messages == [{"role": "system", "content": "Be brief."}]
    without = say(child, "Look.")
    assert image_rows(without.prompt_token_ids) == 0
    assert num_computed(llm) == before
    for each in (conversation, child):
        each.close()


def test_a_woken_conversation_finds_the_keys_of_its_pictures(llm: LLM, folder: Path, tmp_path: Path) -> None:
    conversation = llm.conversation()
    file = tmp_path / "picture.bmp"
    Image.fromarray(OTHER).save(file)
    say(conversation, "One.", PICTURE, file)
    say(conversation, "Again the first.", PICTURE)
    held, messages = conversation.fork(), conversation.messages
    assert messages[0]["content"][1]["image"] == file.read_bytes()
    path = tmp_path / "talk.session"
    assert conversation.sleep(path) == path.stat().st_size
    assert len(session_io.read_attachments(path)) == 2  # each picture once
    expected = say(held, "Next.")
    held.close()
    with LLM(folder, backend="reference", kv="f32", max_context=512) as other:
        woken = other.wake(path)
        assert woken.messages == messages
        answer = say(woken, "Next.")
        assert num_computed(other) == 0
        assert (answer.cached_tokens, answer.token_ids) == (expected.cached_tokens, expected.token_ids)
        assert answer.cached_tokens > image_rows(answer.prompt_token_ids) > 0


def test_generated_ids_that_a_tokenizer_would_not_choose_are_kept_before_and_after_pictures(llm: LLM) -> None:
    conversation = llm.conversation()
    say(conversation, "Look.", PICTURE)
    prefix = conversation._prefixes[-1]
    image_ids = [token for token in prefix.ids if is_image_id(token)]
    assert prefix.image_rows == len(image_ids) > 0
    # As if the model had written the letters of the question with other tokens.
    place = max(index for index, token in enumerate(prefix.ids) if is_image_id(token)) + 2
    odd = [*prefix.ids[:place], 7, *prefix.ids[place:]]
    conversation._prefixes[-1] = prefix._replace(ids=odd)
    messages = [*conversation.messages, {"role": "user", "content": conversation_images.make_content("x", [PNG])}]
    found = conversation.prompt_ids(llm.render(messages))
    assert found[: len(odd)] == odd
    for image in found.images:
        assert all(is_image_id(token) for token in found[image.start : image.stop])
    assert sum(map(is_image_id, found)) == sum(image.num_rows for image in found.images)
    # With another picture of this size in front, nothing of the prefix is used.
    other = conversation_images.make_content("Look.", [conversation_images.encode_png(255 - PICTURE)])
    changed = [{"role": "user", "content": other}, *conversation.messages[1:], {"role": "user", "content": "x"}]
    assert conversation.prompt_ids(llm.render(changed))[: len(odd)] != odd
    conversation.close()


PNG = conversation_images.encode_png(OTHER)


def test_other_files_than_pictures_are_refused_and_nothing_changes(llm: LLM, tmp_path: Path) -> None:
    conversation = llm.conversation()
    text = tmp_path / "text.png"
    text.write_text("not a picture")
    for images, reason in (
        ([tmp_path / "none.png"], "cannot read"),
        ([text], "image"),
        (["https://example.org/a.png"], "addresses of other servers"),
        ([3], "not a picture"),
        ("picture.png", "not a list"),
    ):
        with pytest.raises(RequestError, match=reason):
            conversation.ask("What?", PARAMS, images)
    assert conversation.messages == []
    conversation.close()


def test_too_many_bytes_of_pictures_are_not_saved(llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conversation = llm.conversation()
    say(conversation, "Look.", PICTURE)
    monkeypatch.setattr(session_io, "MAX_ATTACHMENT_BYTES", 100)
    with pytest.raises(RequestError, match=r"session pictures: too large \(got \d+ bytes; allowed 100\)"):
        conversation.save(tmp_path / "talk.session")
    assert not list(tmp_path.iterdir())
    conversation.close()


def test_a_file_without_its_pictures_is_refused(llm: LLM, tmp_path: Path) -> None:
    messages, pictures = conversation_images.detach_pictures(
        [{"role": "user", "content": conversation_images.make_content("", [PNG, PNG])}]
    )
    assert pictures == [PNG]
    path, sequence = tmp_path / "talk.session", llm.engine.sequence()
    notes = {"messages": messages, "told": []}
    llm.engine.save_session(sequence, path, llm.loaded_engine.identity, notes, [b"other"])
    llm.engine.drop(sequence)
    count = len(llm.engine.kv_cache.sequences)
    with pytest.raises(ModelFileError, match="is not a saved conversation"):
        llm.wake(path)
    assert len(llm.engine.kv_cache.sequences) == count
    assert read_messages(notes, [b"", PNG]) == [
        {"role": "user", "content": [{"type": "image", "image": PNG}, {"type": "image", "image": PNG}]}
    ]


def test_a_file_may_claim_ids_of_any_form(llm: LLM, tmp_path: Path) -> None:
    conversation = llm.conversation()
    say(conversation, "Look.", PICTURE)
    prefix = conversation._prefixes[-1]
    places = [index for index, token in enumerate(prefix.ids) if is_image_id(token)]
    inside = places[len(places) // 2]
    for number, ids in enumerate(
        (
            [token for token in prefix.ids if not is_image_id(token)],  # a text with a picture, without its rows
            [*prefix.ids[:inside], 7, *prefix.ids[inside:]],  # a token between the rows
            [],
        )
    ):
        claimed = conversation.fork()
        claimed._prefixes = [prefix._replace(ids=ids)]
        path = tmp_path / f"{number}.session"
        claimed.sleep(path)
        woken = llm.wake(path)
        messages = [*woken.messages, {"role": "user", "content": "And?"}]
        rendered = llm.render(messages)
        found = woken.prompt_ids(rendered)
        assert isinstance(found, PromptIds)
        assert (found, found.images[0].start) == (llm.chat_ids(rendered), places[0])
        woken.close()
    conversation.close()


def test_a_session_with_pictures_is_refused_by_a_model_that_does_not_see(tmp_path: Path) -> None:
    model = write_gguf(tmp_path / "blind.gguf", Tiny("blind", {**LLAMA, "vocab_size": 260}, 1), more=vocabulary())
    with LLM(model, max_context=64, backend="reference") as blind:
        for number, (told, tokens) in enumerate((([[0, "", [3, IMAGE_IDS + 5]]], []), ([], [IMAGE_IDS + 5]))):
            conversation = blind.conversation()
            path = tmp_path / f"{number}.session"
            blind.engine.kv_cache.acquire(conversation.sequence)
            assert blind.engine.kv_cache.reserve(conversation.sequence, len(tokens), [])
            blind.engine.kv_cache.extend(conversation.sequence, tokens)
            blind.engine.kv_cache.release(conversation.sequence)
            notes = {"messages": [], "told": told}
            blind.engine.save_session(conversation.sequence, path, blind.loaded_engine.identity, notes)
            conversation.close()
            with pytest.raises(RequestError, match=r"the session has pictures, and .* without its vision tower"):
                blind.wake(path)
            assert not blind.engine.kv_cache.sequences


def test_the_contents_of_messages_in_files_are_checked() -> None:
    for content in (None, 3, [{"type": "audio"}], [{"type": "text", "text": 3}], [{"type": "image", "sha256": "ab"}]):
        with pytest.raises((AttributeError, KeyError, TypeError, ValueError)):
            read_messages({"messages": [{"role": "user", "content": content}]})
