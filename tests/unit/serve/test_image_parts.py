"""Pictures in the messages of every API: in order with the text, and refused with their place in the request."""

import asyncio
import base64
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote_from_bytes

import pytest

from sporelm.errors import ContextOverflow, RequestError
from sporelm.serve.chat import remote_images
from sporelm.serve.chat.anthropic_blocks import messages_from_blocks
from sporelm.serve.chat.image_parts import (
    RemoteImage,
    has_images,
    image_from_base64,
    image_from_url,
    messages_from_openai,
    with_request_path,
)
from sporelm.serve.chat.remote_images import MAX_REMOTE_IMAGES, fetch_remote_images
from sporelm.serve.chat.response_items import messages_from_items
from sporelm.serve.routes.ollama_chat import OllamaMessage, template_message
from sporelm.serve.routes.ollama_generate import OllamaGenerateRequest, check_supported

PNG, JPEG = b"\x89PNG first", b"\xff\xd8\xff second"
REMOTE = "https://images.example/cat.png"

Message = dict[str, Any]
Parse = Callable[[Message], list[Any]]


def encode(image: bytes) -> str:
    return base64.b64encode(image).decode()


def data_url(image: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{encode(image)}"


def without_paths(messages: list[Any]) -> list[Any]:
    """The messages without the places of their pictures."""

    def plain(part: Any) -> Any:
        return {name: value for name, value in part.items() if name != "path"} if isinstance(part, dict) else part

    return [
        {**message, "content": [plain(part) for part in message["content"]]}
        if isinstance(message, dict) and isinstance(message.get("content"), list)
        else message
        for message in messages
    ]


def text(value: str) -> Message:
    return {"type": "text", "text": value}


def picture(image: Any) -> Message:
    return {"type": "image", "image": image}


def openai_image(url: Any, **more: Any) -> Message:
    return {"type": "image_url", "image_url": {"url": url, **more}}


def anthropic_image(**source: Any) -> Message:
    return {"type": "image", "source": source}


MIXED = [text("Compare "), picture(PNG), text(" with "), picture(JPEG)]


# ---- what is read


def test_openais_parts_stay_in_order() -> None:
    given = [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [
                {**text("Compare "), "cache_control": {"type": "ephemeral"}},
                openai_image(data_url(PNG), detail="high"),
                text(" with "),
                {"type": "image_url", "image_url": data_url(JPEG, "image/jpg")},  # as some clients write it
            ],
        },
    ]
    assert without_paths(messages_from_openai(given)) == [given[0], {"role": "user", "content": MIXED}]
    assert given[1]["content"][1]["type"] == "image_url", "what was given stays as it is"  # type: ignore[index]


def test_responses_items_have_images_in_messages_and_results() -> None:
    parts = [
        {"type": "input_text", "text": "Compare "},
        {"type": "input_image", "image_url": data_url(PNG), "detail": "auto"},
        {"type": "input_text", "text": " with "},
        {"type": "input_image", "image_url": data_url(JPEG)},
    ]
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": parts[1:2]}
    message, _, tool = without_paths(messages_from_items(None, [{"role": "user", "content": parts}, call, result]))
    assert message == {"role": "user", "content": MIXED}
    assert tool == {"role": "tool", "content": [picture(PNG)], "tool_call_id": "c"}


def test_anthropics_blocks_have_images_in_messages_and_results() -> None:
    first = anthropic_image(type="base64", media_type="image/png", data=encode(PNG))
    second = anthropic_image(type="base64", media_type="image/jpeg", data=encode(JPEG))
    result = {"type": "tool_result", "tool_use_id": "c", "content": [text("seen: "), first]}
    failed = {"type": "tool_result", "tool_use_id": "d", "content": [first], "is_error": True}
    question = [text("Compare "), first, text(" with "), second]
    chat = without_paths(messages_from_blocks(None, [{"role": "user", "content": [result, failed, *question]}]))
    assert chat == [
        {"role": "tool", "content": [text("seen: "), picture(PNG)], "tool_call_id": "c"},
        {"role": "tool", "content": [text("Error: "), picture(PNG)], "tool_call_id": "d"},
        {"role": "user", "content": MIXED},
    ]
    (plain,) = messages_from_blocks(None, [{"role": "user", "content": [text("a"), text("b")]}])
    assert plain["content"] == "ab", "text alone stays one text"


def test_ollamas_images_stand_before_the_text() -> None:
    message = OllamaMessage(role="user", content="Compare", images=[encode(PNG), data_url(JPEG)])
    alone = OllamaMessage(role="user", content=None, images=[encode(PNG)])
    none = OllamaMessage(role="user", content="x", images=[])
    first, second, third = without_paths([template_message(each, 0) for each in (message, alone, none)])
    assert first["content"] == [picture(PNG), picture(JPEG), text("Compare")]
    assert second["content"] == [picture(PNG)]
    assert third["content"] == "x"


def test_base64_may_be_wrapped_into_lines() -> None:
    image = bytes(range(256)) * 2
    assert image_from_base64(base64.encodebytes(image).decode(), "images[0]") == image
    assert image_from_url(f"DATA:image/PNG;Base64,{encode(image)}", "images[0]") == image


@pytest.mark.parametrize(
    "url",
    [
        "data:image/png;base64," + encode(PNG).rstrip("="),
        f" data:image/png;name=a.png;base64,{encode(PNG)}#fragment",
        "data:image/png," + quote_from_bytes(PNG),
    ],
)
def test_data_urls_are_read_as_everywhere(url: str) -> None:
    assert image_from_url(url, "images[0]") == PNG
    assert ollama(url)[0]["content"][1]["image"] == PNG


def test_has_images() -> None:
    assert has_images([{"content": "x"}, {"content": [text("x"), picture(PNG)]}])
    assert not has_images([{"content": "x"}, {"content": [text("x")]}, "nonsense", {"content": [1]}])


# ---- what is refused, with its place


def openai(part: Message) -> list[Any]:
    return messages_from_openai([{"role": "user", "content": [text("x"), part]}])


def responses(part: Message) -> list[Any]:
    return messages_from_items(None, [{"role": "user", "content": [{"type": "input_text", "text": "x"}, part]}])


def anthropic(part: Message) -> list[Any]:
    return messages_from_blocks(None, [{"role": "user", "content": [text("x"), part]}])


def anthropic_result(part: Message) -> list[Any]:
    result = {"type": "tool_result", "tool_use_id": "c", "content": [part]}
    return messages_from_blocks(None, [{"role": "user", "content": [text("x"), result]}])


def ollama(image: Any) -> list[Any]:
    return [template_message(OllamaMessage(role="user", content="x", images=[encode(PNG), image]), 0)]


def source(**fields: Any) -> Message:
    return anthropic_image(**{"type": "base64", "media_type": "image/png", "data": encode(PNG)} | fields)


def input_image(url: str) -> Message:
    return {"type": "input_image", "image_url": url}


NOT_BASE64 = ["%%%", "abcde", encode(PNG) + "=", "é" * 8, ""]
BAD: list[tuple[Parse, Any, str]] = [
    *((openai, openai_image(f"data:image/png;base64,{data}"), r"s\[0\].content\[1\](:| has)") for data in NOT_BASE64),
    *((anthropic, source(data=data), r"messages\[0\].content\[1\] has") for data in NOT_BASE64),
    *((ollama, data, r"messages\[0\].images\[1\] has") for data in NOT_BASE64),
    *((responses, input_image(f"data:image/png;base64,{data}"), r"t\[0\].content\[1\](:| has)") for data in NOT_BASE64),
    (openai, openai_image(data_url(PNG, "image/svg+xml")), r"content\[1\] has the media type 'image/svg\+xml'"),
    (openai, openai_image(data_url(PNG, "text/html")), "images must be image/png, image/jpeg, image/webp, image/gif"),
    (openai, openai_image(data_url(PNG, "")), "has the media type ''"),
    (openai, openai_image("data:image/png;base64"), r"^messages\[0\].content\[1\]: image: malformed data URI"),
    (openai, openai_image("data:,%89PNG"), "has the media type ''"),
    (openai, openai_image(None), "has the image URL None"),
    (openai, openai_image(7), "has the image URL 7"),
    (openai, {"type": "image_url"}, "has the image URL None"),
    (openai, openai_image("file:///etc/passwd"), "must be a data URL"),
    (openai, openai_image("/etc/passwd"), "must be a data URL"),
    (openai, openai_image("ftp://x/y.png"), "must be a data URL"),
    (openai, openai_image(data_url(PNG), detail=3), "has the detail 3"),
    (openai, {"type": "image", "image": "/etc/passwd"}, "only 'text' and 'image_url'"),
    (openai, {"type": "input_audio", "input_audio": {}}, "only 'text' and 'image_url'"),
    (responses, {"type": "input_image", "file_id": "file-1"}, "stores no files"),
    (responses, {"type": "input_image"}, "has the image URL None"),
    (responses, {"type": "input_image", "image_url": data_url(PNG, "application/pdf")}, "media type 'application/pdf'"),
    (responses, {"type": "input_file", "file_url": REMOTE}, "only text and input_image"),
    (anthropic, source(media_type="image/tiff"), "media type 'image/tiff'"),
    (anthropic, source(media_type=None), "media type None"),
    (anthropic, source(data=5), "must be a base64 string"),
    (anthropic, source(type="file", file_id="f"), "image source of type 'file'"),
    (anthropic, source(type="url", url="gopher://x"), "must be a data URL"),
    (anthropic, {"type": "image"}, "image source of type None"),
    (anthropic, {"type": "image", "source": "x"}, "image source of type None"),
    (anthropic, {"type": "document", "source": {}}, r"messages\[0\].content\[1\] has a block of type 'document'"),
    (anthropic_result, source(media_type="image/tiff"), r"messages\[0\].content\[1\].content\[0\] has the media type"),
    (ollama, REMOTE, "not valid base64"),
    (ollama, None, "must be a base64 string"),
    (ollama, "data:text/plain;base64,eA==", "media type 'text/plain'"),
]  # fmt: skip


@pytest.mark.parametrize(("parse", "part", "reason"), BAD)
def test_bad_images_are_refused(parse: Parse, part: Any, reason: str) -> None:
    with pytest.raises(RequestError, match=reason) as refusal:
        parse(part)
    assert len(str(refusal.value)) < 300, "the data itself is not repeated"


@pytest.mark.parametrize("role", ["system", "developer", "assistant"])
def test_only_users_and_tools_show_images(role: str) -> None:
    with pytest.raises(RequestError, match=r"messages\[0\].content\[0\] is an image in a message of the role"):
        messages_from_openai([{"role": role, "content": [openai_image(data_url(PNG))]}])
    with pytest.raises(RequestError, match=r"input\[0\].content\[0\] is an image"):
        messages_from_items(None, [{"role": role, "content": [{"type": "input_image", "image_url": data_url(PNG)}]}])
    with pytest.raises(RequestError, match=r"messages\[0\].images\[0\] is an image"):
        template_message(OllamaMessage(role=role, content="x", images=[encode(PNG)]), 0)
    assert messages_from_openai([{"role": "tool", "content": [openai_image(data_url(PNG))]}])


def test_anthropics_system_and_assistant_take_text_alone() -> None:
    block = source()
    with pytest.raises(RequestError, match=r"system\[1\] has a block of type 'image'"):
        messages_from_blocks([text("x"), block], [{"role": "user", "content": "x"}])
    with pytest.raises(RequestError, match=r"messages\[0\].content\[0\] has a block of type 'image'"):
        messages_from_blocks(None, [{"role": "assistant", "content": [block]}])
    with pytest.raises(RequestError, match=r"messages\[0\].content\[0\] is an image"):
        messages_from_blocks(None, [{"role": "system", "content": [block]}])


def test_a_text_part_is_text_alone() -> None:
    """Templates take a part with a key `image` for a picture, and the Python API reads files by their path."""
    (message,) = openai({**text("x"), "image": "/etc/passwd", "image_url": REMOTE})
    assert message["content"] == [text("x"), text("x")]


def test_invalid_parts_are_left_to_the_check_of_messages() -> None:
    given = [{"role": "user", "content": [1, {"type": "text"}]}, "nonsense", {"role": "user", "content": None}]
    assert messages_from_openai(given) == given


@pytest.mark.parametrize("other", [{"raw": True}, {"suffix": "y"}, {"context": [1]}])
def test_ollama_generates_from_images_by_the_template(other: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="images are given together"):
        check_supported(OllamaGenerateRequest(prompt="x", images=[encode(PNG)], **other))


def test_errors_of_rendering_name_the_place_in_the_request() -> None:
    system = {"type": "text", "text": "Be brief."}
    chat = messages_from_blocks([system], [{"role": "user", "content": [text("x"), source()]}])
    error = with_request_path(RequestError("message 1, part 1: image: the file is damaged"), chat)
    assert str(error) == "messages[0].content[1]: image: the file is damaged"
    for other in ("message 1, part 0: x", "message 7, part 1: x", "message 0, part 1: x", "something else"):
        assert str(with_request_path(RequestError(other), chat)) == other
    overflow = ContextOverflow("message 1, part 1: too long")
    assert with_request_path(overflow, chat) is overflow


# ---- remote images


class Fetcher:
    """Answers for the fetcher of the vision room, and keeps the URLs."""

    urls: list[str] = []
    options: list[tuple[Any, ...]] = []

    def __init__(self, *options: Any) -> None:
        self.options.append(options)

    def fetch(self, url: str) -> bytes:
        self.urls.append(url)
        if "wrong" in url:
            raise RequestError("the host wrong is not allowed")
        return b"bytes of " + url.encode()


@pytest.fixture
def fetcher(monkeypatch: pytest.MonkeyPatch) -> type[Fetcher]:
    monkeypatch.setattr(remote_images, "ImageFetcher", Fetcher)
    Fetcher.urls = []
    Fetcher.options = []
    return Fetcher


def fetch(
    messages: list[Any],
    hosts: tuple[str, ...] = ("images.example",),
    max_bytes: int = 1 << 20,
    *,
    can_see: bool = True,
) -> Any:
    config = SimpleNamespace(allow_image_hosts=hosts, image_body_bytes=max_bytes)
    with ThreadPoolExecutor(4) as threads:
        call: Any = SimpleNamespace(server=SimpleNamespace(config=config, fetch_threads=threads))
        return asyncio.run(fetch_remote_images(call, messages, can_see=can_see))


def test_parsing_fetches_nothing_and_remote_images_are_refused_by_default(fetcher: type[Fetcher]) -> None:
    for parsed, path in (
        (openai(openai_image(REMOTE)), "messages[0].content[1]"),
        (responses({"type": "input_image", "image_url": REMOTE}), "input[0].content[1]"),
        (anthropic(anthropic_image(type="url", url=REMOTE)), "messages[0].content[1]"),
        (anthropic_result(anthropic_image(type="url", url=REMOTE)), "messages[0].content[1].content[0]"),
    ):
        assert (RemoteImage(REMOTE), path) in [
            (part["image"], part["path"])
            for each in parsed
            if isinstance(each["content"], list)
            for part in each["content"]
            if "image" in part
        ]
        with pytest.raises(RequestError, match="--allow-image-host NAME") as refusal:
            fetch(parsed, hosts=())
        assert str(refusal.value).startswith(path)
    assert not fetcher.options


def test_remote_images_of_allowed_hosts_are_fetched_once(fetcher: type[Fetcher]) -> None:
    parts = [openai_image(REMOTE), openai_image(f"{REMOTE}?2"), openai_image(REMOTE), openai_image(data_url(PNG))]
    messages = messages_from_openai(
        [{"role": "user", "content": [text("x"), *parts]}, {"role": "user", "content": "y"}]
    )
    found = without_paths(fetch(messages))
    first = picture(f"bytes of {REMOTE}".encode())
    second = picture(f"bytes of {REMOTE}?2".encode())
    assert found[0]["content"] == [text("x"), first, second, first, picture(PNG)]
    assert found[1] == {"role": "user", "content": "y"}
    assert sorted(fetcher.urls) == [REMOTE, f"{REMOTE}?2"]
    rest = (1 << 20) - len(PNG)  # the picture in the request counts
    assert fetcher.options == [(("images.example",), rest, 10.0, rest)]
    without = messages_from_openai([{"role": "user", "content": [openai_image(data_url(PNG))]}])
    assert fetch(without) is without
    assert fetch(messages, can_see=False) is messages, "nothing is fetched for a model that cannot see it"
    assert len(fetcher.urls) == 2


def test_an_error_of_fetching_names_the_image(fetcher: type[Fetcher]) -> None:
    with pytest.raises(RequestError, match=r"^messages\[0\].content\[1\]: the host wrong is not allowed"):
        fetch(openai(openai_image("https://wrong/x.png")))


def test_remote_images_are_limited_in_number_and_size(fetcher: type[Fetcher]) -> None:
    many = [openai_image(f"{REMOTE}?{index}") for index in range(MAX_REMOTE_IMAGES + 1)]
    with pytest.raises(RequestError, match=rf"content\[{MAX_REMOTE_IMAGES}\] is one remote image too many"):
        fetch(messages_from_openai([{"role": "user", "content": many}]))
    assert not fetcher.urls
    fetch(openai(openai_image(REMOTE)), max_bytes=1 << 30)
    fetch(messages_from_openai([{"role": "user", "content": [openai_image(data_url(PNG)), many[0]]}]), max_bytes=5)
    assert [options[1::2] for options in fetcher.options] == [(20 << 20, 1 << 30), (0, 0)]


def test_after_an_error_no_further_image_is_fetched(fetcher: type[Fetcher]) -> None:
    urls = ["https://wrong/x.png", *(f"{REMOTE}?{index}" for index in range(12))]
    with pytest.raises(RequestError, match="wrong"):
        fetch(messages_from_openai([{"role": "user", "content": [openai_image(url) for url in urls]}]))
    assert len(fetcher.urls) < len(urls)
