"""Pictures on the command line: read before a model is loaded, named in errors, listed before they are sent."""

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from sporelm.api import SamplingParams
from sporelm.cli.chat_input import make_completer
from sporelm.cli.chat_sessions import SLASH_COMMANDS, Sessions
from sporelm.cli.image_options import Picture, image_messages, read_pictures, unquote
from sporelm.errors import RequestError


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "a cat.png"
    Image.new("RGB", (3, 2), "red").save(path)
    return path


def test_a_picture_keeps_its_bytes(picture: Path) -> None:
    assert read_pictures([str(picture)]) == [Picture(str(picture), picture.read_bytes())]
    assert str(Picture("a\n.png", b"", 2, 1)) == "a\\n.png, 2 frames, 1 token"


def test_an_error_names_the_file(tmp_path: Path) -> None:
    text = tmp_path / "words.png"
    text.write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    with pytest.raises(RequestError, match=r"words\.png: image: not a supported picture .*SVG"):
        read_pictures([str(text)])
    with pytest.raises(RequestError, match=r"cannot read '.*none\.png': No such file"):
        read_pictures([str(tmp_path / "none.png")])


def test_pictures_stand_in_front_of_the_text() -> None:
    assert image_messages("Hi", []) == [{"role": "user", "content": "Hi"}]
    (message,) = image_messages("Hi", [Picture("a", b"1"), Picture("b", b"2")])
    assert message["content"] == [
        {"type": "image", "image": b"1"}, {"type": "image", "image": b"2"}, {"type": "text", "text": "Hi"}
    ]  # fmt: skip


class FakeConversation:
    """Answers with the number of its pictures, or refuses."""

    is_asleep = False

    def __init__(self, messages: list[dict[str, Any]]) -> None:
        self.messages = messages
        self.is_refusing = False

    def ask(self, text: str, params: object, images: list[bytes]) -> Generator[int, None, None]:
        if self.is_refusing:
            raise RequestError("refused")
        yield len(images)
        parts = [{"type": "image", "image": data} for data in images]
        content = [*parts, {"type": "text", "text": text}] if parts else text
        self.messages = [*self.messages, {"role": "user", "content": content}]

    def fork(self) -> "FakeConversation":
        return FakeConversation(list(self.messages))

    def close(self) -> None:
        pass


class FakeModel:
    def conversation(self, system: str | None = None) -> FakeConversation:
        return FakeConversation([])


@pytest.fixture
def sessions() -> Sessions:
    return Sessions(FakeModel(), SamplingParams(), check_picture=lambda each: each._replace(rows=12))


def test_pictures_go_with_the_next_message_once(sessions: Sessions, picture: Path) -> None:
    assert sessions.run_command("/image") == "no pictures with the next message"
    assert sessions.run_command(f"/image {picture}") == f"with the next message:\n1  {picture}, 12 tokens"
    assert sessions.run_command(f"/image  {picture}").splitlines()[2] == f"2  {picture}, 12 tokens"
    assert sessions.prompt() == "1 [2 pictures]> "
    assert list(sessions.ask("What?")) == [2]
    assert sessions.prompt() == "1> "
    assert list(sessions.ask("And now?")) == [0]
    assert sessions.run_command("/list") == "* 1  2 turns  [2 pictures] What?"


def test_a_refused_message_leaves_its_pictures_for_another(sessions: Sessions, picture: Path) -> None:
    sessions.run_command(f"/image {picture}")
    sessions.current.is_refusing = True
    with pytest.raises(RequestError, match="refused"):
        list(sessions.ask("What?"))
    assert len(sessions.pictures) == 1
    assert sessions.run_command("/image -") == "no pictures with the next message"


def test_each_conversation_has_pictures_of_its_own(sessions: Sessions, picture: Path) -> None:
    sessions.run_command(f"/image {picture}")
    sessions.run_command("/fork")
    assert len(sessions.pictures) == 1
    sessions.run_command(f"/image {picture}")
    assert len(sessions.pictures) == 2
    sessions.run_command("/switch 1")
    assert len(sessions.pictures) == 1
    sessions.run_command("/create")
    assert not sessions.pictures
    sessions.run_command("/switch 2")
    sessions.run_command("/drop")
    assert not sessions.pictures


def test_a_picture_that_the_model_refuses_is_not_added(picture: Path) -> None:
    def refuse(each: Picture) -> Picture:
        raise RequestError(f"{each.name}: the model does not see")

    sessions = Sessions(FakeModel(), SamplingParams(), check_picture=refuse)
    with pytest.raises(RequestError, match="does not see"):
        sessions.run_command(f"/image {picture}")
    assert not sessions.pictures


def test_tab_completes_commands_and_the_paths_behind_them(picture: Path) -> None:
    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.document import Document

    def complete(text: str) -> list[str]:
        found = make_completer().get_completions(Document(text), CompleteEvent(completion_requested=True))
        return [text[: len(text) + each.start_position] + each.text for each in found]

    assert complete("/im") == ["/image"]
    assert complete("/") == [f"/{each}" for each in SLASH_COMMANDS]
    for command in ("/image", "/save", "/load"):
        assert complete(f"{command} {picture.parent}/a c") == [f"{command} {picture}"]
    assert complete(f"/switch {picture.parent}/a c") == complete("im") == complete("text\n/im") == []


def test_quotes_around_a_path_are_stripped(sessions: Sessions, picture: Path) -> None:
    for quote in "'", '"':
        sessions.run_command(f"/image {quote}{picture}{quote}")
    assert [each.name for each in sessions.pictures] == [str(picture)] * 2
    odd = picture.rename(picture.with_name("'odd'"))
    assert unquote(str(odd)) == str(odd)
    with pytest.raises(RequestError, match="cannot read"):
        sessions.run_command("/image 'none.png\"")


@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_path_is_refused(name: str) -> None:
    with pytest.raises(RequestError, match="image: an empty path"):
        read_pictures([name])


@pytest.mark.parametrize("name", ["http://a.org/b.png", "https://a.org/b.png", "ftp://a.org/b.png", "data:image/png,x"])
def test_addresses_are_not_opened(sessions: Sessions, name: str) -> None:
    for show in (lambda: read_pictures([name]), lambda: sessions.run_command(f"/image {name}")):
        with pytest.raises(RequestError, match=r"^image: addresses are not opened .*Download the picture"):
            show()
