"""Acts of the clients that load a server in a soak, well-behaved and hostile ones."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from soak.load import BOMBS
from soak.wire import Line, fetch, line_to, request

KEYS = {"good": "key-of-good", "anna": "key-of-anna", "ben": "key-of-ben", "cleo": "key-of-cleo"}
OTHERS = ("anna", "ben", "cleo")
WORDS = [
    "the",
    "dog",
    "ran",
    "to",
    "Lily",
    "and",
    "Tom",
    "saw",
    "a",
    "red",
    "ball",
    "park",
    "mom",
    "who",
    "cake",
    "day",
]
REFUSED = (429, 503)  # for a while
BURST = 60
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 5}}, "required": ["name"]}
FORMS: list[dict[str, Any]] = [
    {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
    {"type": "regex", "regex": "[a-z]{2,5}( [a-z]{1,5}){0,3}"},
    {"type": "choice", "choice": ["yes", "no"]},
    {"type": "json_object"},
]
MALFORMED_BODIES: list[bytes] = [
    b"", b"{", b"[]", b"null", b"\xff\xfe\x00", b'{"prompt": NaN}', b'{"prompt":' + b"[" * 50_000,
    b'{"prompt": "\\ud800"}',
    b'{"prompt": "a", "max_tokens": 1e400}', b'{"prompt": "a", "logit_bias": ' + b'{"1":' * 9000,
    b'{"prompt": [-1]}', b'{"prompt": "a", "n": 2147483648}', b'{"prompt": "a", "nonsense": 1}', b'{"model": "../x"}',
    json.dumps({"prompt": "a", "logit_bias": {str(number): 1 for number in range(20_000)}}).encode(),
    json.dumps({"prompt": "a", "stop": ["x"] * 50_000}).encode(),
    json.dumps({"prompt": list(range(40_000))}).encode(),
    json.dumps({"prompt": ["a"] * 5000}).encode(),
]  # fmt: skip
MALFORMED_HEADS: list[bytes] = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET / HTTP/9.9\r\n\r\n",
    b"\r\n\r\n\r\n\r\n",
    b"NONSENSE\r\n\r\n",
    b"GET /%s HTTP/1.1\r\nhost: localhost\r\n\r\n" % (b"a" * 70_000),
    b"GET / HTTP/1.1\r\nhost: localhost\r\nx: %s\r\n\r\n" % (b"b" * 70_000),
    b"GET / HTTP/1.1\r\nhost: localhost\r\n" + b"x: 1\r\n" * 3000 + b"\r\n",
    b"GET / HTTP/1.1\r\nhost: localhost\r\n x: folded\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost\x00: localhost\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: -5\r\n\r\n{}",
    b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n{}    ",
    b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999999999999999\r\n\r\n{}",
    b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"GET /v1/models HTTP/1.1\r\nhost: evil.example\r\n\r\n",
    b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
]


@dataclass
class ServerLoad:
    """State that the clients share: counts, faults, and the expected continuations."""

    port: int
    random: Random
    room: int  # positions of a context
    acts: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    compared: int = 0
    faults: list[str] = field(default_factory=list)
    truths: dict[str, str] = field(default_factory=dict)  # prompt -> its continuation on an idle server

    @property
    def key(self) -> str:
        """The API key of a random client that is not well-behaved."""
        return KEYS[self.random.choice(OTHERS)]

    def text(self, longest: int = 0) -> str:
        """Random words; short texts are more frequent, and some share their beginning with others."""
        limit = longest or self.room // 3
        count = 1 + int(limit * self.random.random() ** 3)
        seed = Random(self.random.randrange(8)) if self.random.random() < 0.5 else self.random
        return " ".join(seed.choice(WORDS) for _ in range(count))

    def completion(self, **more: Any) -> dict[str, Any]:
        """The body of a random completion request."""
        random = self.random
        body: dict[str, Any] = {
            "prompt": self.text(), "max_tokens": random.choice([1, 4, 16, 40]), "temperature": random.choice([0, 0.8]),
            "stream": random.random() < 0.5, "seed": random.randrange(1 << 30),
        }  # fmt: skip
        if random.random() < 0.1:
            body["response_format"] = random.choice(FORMS)
        if random.random() < 0.1:
            body |= {"logprobs": 3, "n": 2}
        return body | more

    def note(self, status: int, expected: tuple[int, ...], what: str, answer: bytes = b"") -> None:
        """Count a response; an unexpected status is a fault."""
        self.statuses[status] += 1
        if status == 400 and b"vocabulary has no token" in answer:
            return  # the model's tokens cannot spell the format
        if status not in expected and status not in REFUSED:
            self.faults.append(f"{what} was answered with {status}: {answer[:200]!r}")


@asynccontextmanager
async def sent(load: ServerLoad, path: str, body: Any, **more: Any) -> AsyncGenerator[Line, None]:
    """Open a connection and send a request on it."""
    async with line_to(load.port, more.pop("window", None)) as line:
        await line.send(request("POST", path, body, load.key, **more))
        yield line


async def ask(load: ServerLoad, path: str, body: Any, what: str, *expected: int, key: str = "") -> Any:
    """Send a valid request; return the body of the response, or None if the server is busy."""
    answer = await fetch(load.port, "POST", path, body, key or load.key)
    load.note(answer.status, expected or (200,), what, answer.body)
    if answer.status == 200 and answer.headers["content-type"].startswith("application/json"):
        return answer.json()
    return answer.body if answer.status == 200 else None


# ---- well-behaved clients


async def streamed(load: ServerLoad, prompt: str, key: str) -> str | None:
    """Stream a prompt's greedy continuation; None if the server is busy."""
    body = {"prompt": prompt, "max_tokens": 24, "temperature": 0, "stream": True, "ignore_eos": True}
    async with line_to(load.port) as line:
        await line.send(request("POST", "/v1/completions", body, key))
        answer = await line.head()
        load.statuses[answer.status] += 1
        if answer.status in REFUSED:
            await asyncio.sleep(float(answer.headers["retry-after"]) * load.random.random())
            return None
        text, done = "", False
        async for data in line.events(answer):
            done = data == "[DONE]"
            if not done:
                text += json.loads(data)["choices"][0]["text"]
        if answer.status != 200 or not done:
            raise ConnectionResetError(f"a stream ended with {answer.status} after {text!r}")
        return text


async def good(load: ServerLoad) -> None:
    """Stream a known prompt: other clients must not change its text."""
    prompt = load.random.choice(list(load.truths))
    text = await streamed(load, prompt, KEYS["good"])
    if text is not None:
        load.compared += 1
        if text != load.truths[prompt]:
            load.faults.append(f"{prompt!r} was continued with {text!r}, alone with {load.truths[prompt]!r}")


# ---- other clients


async def complete(load: ServerLoad) -> None:
    """Read a whole completion."""
    async with sent(load, "/v1/completions", load.completion()) as line:
        answer = await line.answer()
        load.note(answer.status, (200,), "a completion", answer.body)


async def chat(load: ServerLoad) -> None:
    """Chat through one of the three APIs."""
    messages = [{"role": "user", "content": load.text(60)}]
    path, more = load.random.choice(
        [
            ("/v1/chat/completions", {"max_tokens": 8, "stream": True, "stream_options": {"include_usage": True}}),
            ("/v1/messages", {"model": "soak", "max_tokens": 8}),
            ("/api/chat", {"model": "soak", "options": {"num_predict": 8}}),
            ("/v1/messages/count_tokens", {"model": "soak"}),
        ]
    )
    await ask(load, path, {"messages": messages} | more, path)


async def leave(load: ServerLoad) -> None:
    """Disconnect at a random moment: in the header, the body, the prompt or the answer."""
    data = request("POST", "/v1/completions", load.completion(max_tokens=60), load.key)
    async with line_to(load.port) as line:
        moment = load.random.random()
        if moment < 0.3:
            await line.send(data[: load.random.randrange(len(data))])
            await asyncio.sleep(load.random.random() ** 4)
        else:
            await line.send(data)
            if moment < 0.6:
                await asyncio.sleep(load.random.random() ** 2)
            else:
                for _ in range(load.random.randrange(1, 6)):
                    await line.reader.read(300)


async def read_slowly(load: ServerLoad) -> None:
    """Read slowly with a small receive window, or pause."""
    body = load.completion(max_tokens=60, stream=True, logprobs=20, n=load.random.choice([1, 4]), response_format=None)
    async with sent(load, "/v1/completions", body, window=2048) as line:
        until = asyncio.get_running_loop().time() + 8 * load.random.random()
        if load.random.random() < 0.3:
            await asyncio.sleep(8 * load.random.random())
        while asyncio.get_running_loop().time() < until and await line.reader.read(200):
            await asyncio.sleep(0.05)


async def send_slowly(load: ServerLoad) -> None:
    """Send a request in small pieces, until it is complete or either side closes the connection."""
    data = request("POST", "/v1/completions", load.completion(max_tokens=2), load.key)
    step = load.random.choice([1, 20, 200])
    async with line_to(load.port) as line:
        for at in range(0, min(len(data), 40 * step), step):
            await line.send(data[at : at + step])
            await asyncio.sleep(0.1)


async def bad_body(load: ServerLoad) -> None:
    """Send a malformed body."""
    body, path = load.random.choice(MALFORMED_BODIES), load.random.choice(["/v1/completions", "/infer"])
    async with sent(load, path, body) as line:
        answer = await line.answer()
        load.note(answer.status, (400,), f"{body[:40]!r} to {path}", answer.body)


async def bad_head(load: ServerLoad) -> None:
    """Send bytes that are not an HTTP request."""
    async with line_to(load.port) as line:
        await line.send(load.random.choice(MALFORMED_HEADS))
        answer = await line.read_all()
        if answer and (b"HTTP/1.1 " not in answer[:9] or answer[9:10] not in b"45"):
            load.faults.append(f"a malformed header was answered with {answer[:60]!r}")


async def pipeline(load: ServerLoad) -> None:
    """Pipeline requests on one connection; responses come in order. Sometimes disconnect before they do."""
    paths = [f"/missing-{load.random.randrange(1 << 20)}" for _ in range(5)]
    requests = [request("GET", path, None, load.key, close=False) for path in paths]
    async with line_to(load.port) as line:
        await line.send(b"".join(requests))
        if load.random.random() < 0.3:
            return
        for path in paths:
            answer = await line.answer()
            load.note(answer.status, (404,), "a pipelined request", answer.body)
            if path.encode() not in answer.body:
                load.faults.append(f"the pipelined request {path} was answered with {answer.body[:200]!r}")


async def wrong_key(load: ServerLoad) -> None:
    """Use a wrong API key: protected paths must refuse it."""
    key = load.random.choice(["", "unknown-key", "key-of-good" * 900])
    path = load.random.choice(["/v1/models", "/metrics", "/nowhere", "/infer"])
    answer = await fetch(load.port, "GET", path, None, key)
    load.note(answer.status, (401,), f"{path} without a key")


async def session(load: ServerLoad) -> None:
    """Create, continue, fork, cancel, leave or drop a session; other tenants cannot see it."""
    tenant, other = load.random.sample(OTHERS, 2)
    name, key = f"s{load.random.randrange(40)}", KEYS[tenant]
    say: dict[str, Any] = {"encoding": "text", "session_id": name, "max_tokens": 6, "temperature": 0}

    def messages(text: str) -> list[dict[str, str]]:
        return [{"role": "user", "content": text}]

    act = load.random.choice(["ask", "ask", "go on", "leave", "fork", "cancel", "drop", "steal"])
    if act == "ask":
        await ask(load, "/infer", say | {"messages": messages(load.text(40))}, "a session", 200, 406, key=key)
    elif act == "go on":
        await ask(
            load, "/infer", say | {"messages": messages("And"), "dialog_pos": 2}, "more", 200, 404, 406, 416, key=key
        )
    elif act == "leave":
        async with line_to(load.port) as line:
            body = say | {"messages": messages(load.text()), "max_tokens": 100}
            await line.send(request("POST", "/infer", body, key, {"accept": "text/event-stream"}))
            await asyncio.sleep(load.random.random())
    elif act == "fork":
        body = {"session_id": name, "new_session_id": f"s{load.random.randrange(40)}"}
        await ask(load, "/fork", body, "a fork", 200, 404, 406, 409, key=key)
    elif act == "steal":
        mine = f"{tenant}-{load.random.randrange(1 << 40)}"
        answer = await ask(load, "/infer", say | {"session_id": mine, "messages": messages("Hi")}, "a session", key=key)
        if answer is not None:
            await ask(load, "/drop", {"session_id": mine}, "another's session", 404, key=KEYS[other])
            await ask(load, "/drop", {"session_id": mine}, "one's own session", 200, key=key)
    else:
        await ask(load, f"/{act}", {"session_id": name}, f"/{act}", 200, 404, key=key)


async def vectors(load: ServerLoad) -> None:
    """Request embeddings or prompt scores; sometimes disconnect before they are ready."""
    texts = [load.text(load.room // 8) for _ in range(load.random.choice([1, 1, 2, 12]))]
    path, body = load.random.choice(
        [
            ("/v1/embeddings", {"input": texts, "encoding_format": "base64"}),
            ("/v1/completions", {"prompt": texts[:2], "echo": True, "logprobs": 2, "max_tokens": 0}),
            ("/api/embed", {"model": "soak", "input": texts}),
        ]
    )
    async with sent(load, path, body) as line:
        if load.random.random() < 0.3:
            await asyncio.sleep(load.random.random())
            return
        answer = await line.answer()
        load.note(answer.status, (200, 504), path, answer.body)  # under load some time out


async def bomb(load: ServerLoad) -> None:
    """Use a grammar that is too expensive: it is refused, or fails only its own answer."""
    form = load.random.choice(BOMBS)
    kind = "json_schema" if "json_schema" in form else next(iter(form))
    value = {"name": "x", "schema": form["json_schema"]} if kind == "json_schema" else form[kind]
    body = load.completion(response_format={"type": kind, kind: value}, stream=False, n=1, max_tokens=8)
    await ask(load, "/v1/completions", body, f"the grammar {str(form)[:60]}", 200, 400)


async def burst(load: ServerLoad) -> None:
    """Send more requests at once than may wait: some get 429 with Retry-After."""

    async def one() -> None:
        async with sent(load, "/v1/completions", load.completion(max_tokens=2, n=1, stream=False)) as line:
            answer = await line.answer()
            load.note(answer.status, (200,), "one of many", answer.body)
            if answer.status == 429 and not int(answer.headers.get("retry-after", 0)):
                load.faults.append("429 without Retry-After")

    await asyncio.gather(*(one() for _ in range(BURST)))


async def page(load: ServerLoad) -> None:
    """Load a page of the web chat; create, change and delete one of its conversations."""
    target = load.random.choice(["/", "/docs", "/openapi.json", "/metrics"])
    answer = await fetch(load.port, "GET", target, None, load.key)
    load.note(answer.status, (200,), "a page")
    key, path = load.key, "/api/ui/conversations"
    created = await fetch(load.port, "POST", path, {"title": load.text(5)}, key)
    load.note(created.status, (201, 200), "a conversation", created.body)
    if created.status in (200, 201):
        stored = created.json()
        message = {"id": f"{load.random.getrandbits(128):032x}", "role": "user", "content": load.text()}
        change = {"version": stored["version"], "messages": [message]}
        done = await fetch(load.port, "PATCH", f"{path}/{stored['id']}", change, key)
        load.note(done.status, (200,), "a change", done.body)
        if load.random.random() < 0.9:
            deleted = await fetch(load.port, "DELETE", f"{path}/{stored['id']}", None, key)
            load.note(deleted.status, (200,), "a deleted conversation", deleted.body)


Act = Callable[[ServerLoad], Awaitable[None]]
ACTS: dict[str, tuple[Act, int]] = {
    "complete": (complete, 8), "chat": (chat, 6), "leave": (leave, 14), "read_slowly": (read_slowly, 6),
    "send_slowly": (send_slowly, 4), "bad_body": (bad_body, 6), "bad_head": (bad_head, 6), "pipeline": (pipeline, 4),
    "wrong_key": (wrong_key, 2), "session": (session, 12), "vectors": (vectors, 5), "bomb": (bomb, 1),
    "burst": (burst, 1), "page": (page, 3),
}  # fmt: skip
