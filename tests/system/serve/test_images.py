"""Pictures over HTTP, with a tiny model that sees: every API and its official client, token counts, errors, limits."""

import base64
import json
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anthropic
import httpx
import ollama
import openai
import pytest
from PIL import Image

from image_files import HTML, SVG, saved
from sporelm import LLM, SamplingParams
from sporelm.serve.chat import remote_images
from sporelm.serve.serve_config import ModelSpec, ServeConfig
from sporelm.vision.image_fetching import ImageFetcher
from system.serve.running_server import Running, run_server, server_options
from vision_folders import draw_picture

pytest.importorskip("tokenizers", reason="the model's tokenizer is written with tokenizers, which is not installed")

WIDE = saved(Image.fromarray(draw_picture(190, 70, seed=1)), "PNG")
TALL = saved(Image.fromarray(draw_picture(40, 150, seed=2)), "JPEG", quality=95)
QUESTION = "What differs, and why is that so?"
LENGTH = 8


def encode(image: bytes) -> str:
    return base64.b64encode(image).decode()


def data_url(image: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{encode(image)}"


def openai_parts(*urls: str, text: str = QUESTION) -> list[Any]:
    return [*({"type": "image_url", "image_url": {"url": url}} for url in urls), {"type": "text", "text": text}]


def block(image: bytes, media_type: str = "image/png") -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": encode(image)}}


OPENAI: list[Any] = [{"role": "user", "content": openai_parts(data_url(WIDE), data_url(TALL, "image/jpeg"))}]
BLOCKS: list[Any] = [block(WIDE), block(TALL, "image/jpeg"), {"type": "text", "text": QUESTION}]
ANTHROPIC: list[Any] = [{"role": "user", "content": BLOCKS}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from drawn_vision import write_qwen2vl

    return write_qwen2vl(tmp_path_factory.mktemp("vision") / "qwen2vl")


class Expected:
    """The answer of the Python API to the same chat, and its number of tokens."""

    def __init__(self, folder: Path) -> None:
        parts = [{"type": "image", "image": image} for image in (WIDE, TALL)]
        messages = [{"role": "user", "content": [*parts, {"type": "text", "text": QUESTION}]}]
        with LLM(folder, threads=1) as llm:
            self.num_tokens = len(llm.chat_ids(llm.render(messages)))
            params = SamplingParams(max_tokens=LENGTH, temperature=0.0)
            self.text = llm.chat(messages, params).text


@pytest.fixture(scope="module")
def expected(folder: Path) -> Expected:
    return Expected(folder)


@pytest.fixture(scope="module")
def seeing(folder: Path, chatty: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server of a model that sees, `eyes`, and of one that does not, `story`."""
    models = (ModelSpec("eyes", str(folder)), ModelSpec("story", str(chatty)))
    session_dir = tmp_path_factory.mktemp("sessions")
    running, stop = run_server(ServeConfig(**server_options(models=models, session_dir=session_dir)))
    yield running
    stop()


@pytest.fixture(scope="module")
def client(seeing: Running) -> httpx.Client:
    return seeing.client()


@pytest.fixture(scope="module")
def openai_client(seeing: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{seeing.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def anthropic_client(seeing: Running) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=seeing.url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def ollama_client(seeing: Running) -> ollama.Client:
    client = ollama.Client(host=seeing.url, trust_env=False)
    seeing.clients.callback(client._client.close)
    return client


# ---- the official clients


def test_openais_chat(openai_client: openai.OpenAI, expected: Expected) -> None:
    fields: dict[str, Any] = {"model": "eyes", "messages": OPENAI, "max_tokens": LENGTH, "temperature": 0}
    reply = openai_client.chat.completions.create(**fields)
    assert reply.choices[0].message.content == expected.text
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == expected.num_tokens
    stream = openai_client.chat.completions.create(**fields, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == expected.text


def test_openais_responses(openai_client: openai.OpenAI, expected: Expected) -> None:
    content: list[Any] = [
        {"type": "input_image", "image_url": data_url(WIDE), "detail": "auto"},
        {"type": "input_image", "image_url": data_url(TALL, "image/jpeg"), "detail": "low"},
        {"type": "input_text", "text": QUESTION},
    ]
    reply = openai_client.responses.create(
        model="eyes", input=[{"role": "user", "content": content}], max_output_tokens=LENGTH, temperature=0
    )
    assert reply.output_text == expected.text
    assert reply.usage is not None
    assert reply.usage.input_tokens == expected.num_tokens


def test_anthropics_messages(anthropic_client: anthropic.Anthropic, expected: Expected) -> None:
    reply = anthropic_client.messages.create(
        model="eyes", max_tokens=LENGTH, messages=ANTHROPIC, extra_body={"temperature": 0}
    )
    assert reply.content[0].type == "text"
    assert reply.content[0].text == expected.text
    assert reply.usage.input_tokens + (reply.usage.cache_read_input_tokens or 0) == expected.num_tokens
    counted = anthropic_client.messages.count_tokens(model="eyes", messages=ANTHROPIC)
    assert counted.input_tokens == expected.num_tokens


def test_anthropics_tool_results_show_pictures(anthropic_client: anthropic.Anthropic) -> None:
    def count(content: Any) -> int:
        messages: list[Any] = [
            {"role": "user", "content": "Look at the screen"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "look", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": content}]},
        ]
        tools: list[Any] = [{"name": "look", "input_schema": {"type": "object", "properties": {}}}]
        return anthropic_client.messages.count_tokens(model="eyes", messages=messages, tools=tools).input_tokens

    text = {"type": "text", "text": "Here:"}
    assert count([text, block(WIDE)]) > count([text]) + 10


def test_ollamas_chat_and_generate(ollama_client: ollama.Client, expected: Expected, tmp_path: Path) -> None:
    options = {"temperature": 0, "num_predict": LENGTH}
    file = tmp_path / "tall.jpg"
    file.write_bytes(TALL)
    message = {"role": "user", "content": QUESTION, "images": [WIDE, str(file)]}  # the client encodes both
    reply = ollama_client.chat("eyes", messages=[message], options=options)
    assert reply.message.content == expected.text
    assert reply.prompt_eval_count == expected.num_tokens
    generated = ollama_client.generate("eyes", QUESTION, images=[WIDE, TALL], options=options)
    assert generated.response == expected.text
    assert generated.context is None, "ids alone could not bring the pictures back"
    assert "vision" in (ollama_client.show("eyes").capabilities or [])
    assert "vision" not in (ollama_client.show("story").capabilities or [])


def test_the_list_of_models_says_which_see(folder: Path, chatty: Path, openai_client: openai.OpenAI) -> None:
    sees = {model.id: model.vision for model in openai_client.models.list()}  # type: ignore[attr-defined]
    assert sees == {"eyes": True, "story": False}


def test_tokens_are_counted_before_a_model_answers(client: httpx.Client, expected: Expected) -> None:
    reply = client.post("/tokenize", json={"model": "eyes", "messages": OPENAI, "return_token_strs": True}).json()
    assert reply["count"] == len(reply["tokens"]) == expected.num_tokens
    assert reply["token_strs"].count("<|image_pad|>") == 14 + 5, "rows of both"
    prompt = client.post("/apply-template", json={"model": "eyes", "messages": OPENAI}).json()["prompt"]
    assert prompt.count("<|image_pad|>") == reply["token_strs"].count("<|image_pad|>")


def test_a_second_question_finds_the_picture_in_the_cache(client: httpx.Client) -> None:
    def ask(messages: list[Any]) -> Any:
        body = {"model": "eyes", "messages": messages, "max_tokens": LENGTH, "temperature": 0}
        return client.post("/v1/chat/completions", json=body).json()

    first = ask(OPENAI)
    said = {"role": "assistant", "content": first["choices"][0]["message"]["content"]}
    second = ask([*OPENAI, said, {"role": "user", "content": "And why?"}])
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= 64, "a page, with the rows of both"


# ---- what is refused


def test_a_model_that_cannot_see_says_so(client: httpx.Client) -> None:
    for path, body in (
        ("/v1/chat/completions", {"messages": OPENAI}),
        ("/v1/messages", {"messages": ANTHROPIC, "max_tokens": 4}),
        ("/v1/messages/count_tokens", {"messages": ANTHROPIC}),
        ("/api/chat", {"messages": [{"role": "user", "content": "x", "images": [encode(WIDE)]}]}),
        ("/api/generate", {"prompt": "x", "images": [encode(WIDE)]}),
        ("/tokenize", {"messages": OPENAI}),
    ):
        reply = client.post(path, json={"model": "story", **body})
        assert reply.status_code == 400, path
        assert "does not see. Choose a model with vision (GET /v1/models shows which)" in reply.text


@pytest.mark.parametrize("data", [SVG, HTML, WIDE[:60], b"\x89PNG\r\n\x1a\n", b"GIF89a" + bytes(3), b"nonsense"])
def test_other_files_are_refused_with_their_place(client: httpx.Client, data: bytes) -> None:
    for path, body, place in (
        (
            "/v1/chat/completions",
            {
                "messages": [
                    {"role": "system", "content": "x"},
                    {"role": "user", "content": openai_parts(data_url(data))},
                ]
            },
            "messages[1].content[0]",
        ),
        (
            "/v1/responses",
            {
                "instructions": "x",
                "input": [{"role": "user", "content": [{"type": "input_image", "image_url": data_url(data)}]}],
            },
            "input[0].content[0]",
        ),
        (
            "/v1/messages",
            {"system": "x", "max_tokens": 4, "messages": [{"role": "user", "content": [BLOCKS[2], block(data)]}]},
            "messages[0].content[1]",
        ),
        (
            "/api/chat",
            {"messages": [{"role": "user", "content": "x", "images": [encode(WIDE), encode(data)]}]},
            "messages[0].images[1]",
        ),
        ("/api/generate", {"prompt": "x", "images": [encode(data)]}, "images[0]"),
    ):
        reply = client.post(path, json={"model": "eyes", **body})
        assert reply.status_code == 400, (path, reply.text)
        error = reply.json()["error"]
        message = error if isinstance(error, str) else error["message"]
        assert message.startswith(place), message
        assert encode(data)[:40] not in reply.text
        if path.startswith("/v1/chat"):
            assert error["param"] == place


def test_more_pictures_than_the_context_holds_name_the_limit(client: httpx.Client) -> None:
    large = saved(Image.fromarray(draw_picture(224, 140, seed=3)), "PNG")  # 40 rows
    for number, code, message in (
        (
            120,
            "context_length_exceeded",
            "image 103 of 120: the prompt is too long (got 4120 tokens of pictures so far",
        ),
        (130, None, "images: too many pictures (got 130; allowed 128 in a request"),
    ):
        many = [{"role": "user", "content": openai_parts(*[data_url(large)] * number)}]
        reply = client.post("/v1/chat/completions", json={"model": "eyes", "messages": many, "max_tokens": 4})
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, code)
        assert reply.json()["error"]["message"].startswith(message)


def test_a_path_is_never_read(client: httpx.Client, tmp_path: Path) -> None:
    file = tmp_path / "secret.png"
    file.write_bytes(WIDE)
    for part in (
        {"type": "image", "image": str(file)},
        {"type": "image"},
        {"type": "image_url", "image_url": {"url": str(file)}},
        {"type": "image_url", "image_url": {"url": f"file://{file}"}},
        {"type": "image_url", "image_url": str(file)},
    ):
        body = {"model": "eyes", "messages": [{"role": "user", "content": [part]}], "max_tokens": 4}
        assert client.post("/v1/chat/completions", json=body).status_code == 400, part
    text = {"type": "text", "text": "x", "image": str(file)}
    body = {"model": "eyes", "messages": [{"role": "user", "content": [text]}]}
    plain = {"model": "eyes", "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]}
    assert client.post("/tokenize", json=body).json() == client.post("/tokenize", json=plain).json()


# ---- limits of bodies


def test_pictures_have_more_room_than_text(serve: Callable[..., Running]) -> None:
    client = serve(max_body=20_000, max_image_body=100_000).client()

    def send(**body: Any) -> httpx.Response:
        return client.post("/v1/chat/completions", json={"max_tokens": 1, **body})

    def ask(text: str, *images: bytes) -> httpx.Response:
        return send(messages=[{"role": "user", "content": openai_parts(*map(data_url, images), text=text)}])

    assert "does not see" in ask("x", bytes(50_000)).text, "it is read, though the model cannot see it"
    large = ask("x", bytes(80_000))
    assert (large.status_code, "max_image_body" in large.text) == (413, True)
    wordy = ask("word " * 5000, bytes(10_000))
    assert (wordy.status_code, "max_body, without the data of images" in wordy.text) == (413, True)
    assert client.post("/v1/completions", json={"prompt": "x" * 50_000}).status_code == 413, "takes no images"


# ---- remote pictures


class _Pictures(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        data = WIDE if self.path == "/wide.png" else b"not a picture"
        self.send_response(200)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *parts: Any) -> None:
        pass


@pytest.fixture
def pictures() -> Iterator[str]:
    """A web server of pictures on this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Pictures)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://localhost:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_remote_pictures_come_from_allowed_hosts(
    serve: Callable[..., Running], folder: Path, pictures: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = pictures.removeprefix("http://")
    client = serve(models=(ModelSpec("eyes", str(folder)),), allow_image_hosts=(host,)).client()

    def count(url: str) -> httpx.Response:
        source = {"type": "image", "source": {"type": "url", "url": url}}
        return client.post("/v1/messages/count_tokens", json={"messages": [{"role": "user", "content": [source]}]})

    private = count(f"{pictures}/wide.png")
    assert private.status_code == 400, "a name that leads to this machine"
    assert private.json()["error"]["message"].startswith("messages[0].content[0]: ")
    monkeypatch.setattr(remote_images, "ImageFetcher", partial(ImageFetcher, is_allowed=lambda address: True))
    local = {"messages": [{"role": "user", "content": [block(WIDE)]}]}
    assert count(f"{pictures}/wide.png").json() == client.post("/v1/messages/count_tokens", json=local).json()
    for url in (
        f"{pictures}/text",
        "https://example.org/x.png",
        f"{pictures.replace('localhost', '127.0.0.1')}/wide.png",
    ):
        refused = count(url)
        assert refused.status_code == 400, url
        assert refused.json()["error"]["message"].startswith("messages[0].content[0]: "), refused.text


# ---- the web chat


def test_the_web_chat_answers_questions_about_stored_pictures(client: httpx.Client, expected: Expected) -> None:
    ids = []
    for image, media_type in ((WIDE, "image/png"), (TALL, "image/jpeg")):
        stored = client.post("/api/ui/images", content=image, headers={"content-type": media_type}).json()
        assert client.get(f"/api/ui/images/{stored['id']}").content == image
        ids.append(stored["id"])
    counted = {"role": "user", "content": QUESTION, "images": ids}
    count = client.post("/api/ui/tokens", json={"model": "eyes", "messages": [counted]}).json()
    assert count["count"] == expected.num_tokens
    question = {"id": "a" * 32, "role": "user", "content": QUESTION, "images": [{"id": each} for each in ids]}
    settings = {"temperature": 0, "max_tokens": LENGTH}
    made = client.post("/api/ui/conversations", json={"messages": [question], "settings": settings}).json()

    def answer(identity: str, model: str) -> Any:
        place = f"/api/ui/conversations/{made['id']}"
        client.post(f"{place}/answers", json={"id": identity * 32, "parent": "a" * 32, "model": model})
        with client.stream("GET", f"{place}/events") as events:
            for line in events.iter_lines():
                data = json.loads(line.removeprefix("data: ")) if line.startswith("data: ") else {}
                written = data.get("answer", {})
                if written is None or "finish" in written:
                    break
        return client.get(place).json()["messages"][-1]

    assert answer("b", "eyes")["content"] == expected.text
    blind = answer("c", "story")
    assert blind["error"] == {"code": "cannot_see", "model": "story"}


def test_the_log_has_no_pictures(client: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG"):
        for image in (WIDE, b"\x89PNG\r\n\x1a\nnonsense nonsense nonsense nonsense nonsense"):
            messages = [{"role": "user", "content": openai_parts(data_url(image))}]
            client.post("/v1/chat/completions", json={"model": "eyes", "messages": messages, "max_tokens": 1})
            assert encode(image)[:60] not in caplog.text
    assert "/v1/chat/completions" in caplog.text
