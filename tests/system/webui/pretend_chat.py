"""A server for the web chat without a model: the real page, store and jobs, and answers that are canned.

What the last message asks for decides the answer: "markdown", "slow", "long", "think", "fail", "break", "late", "cut",
"busy" (once), "uncached"; else an echo.
"""

import asyncio
import json
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from sporelm.serve.conversations.answer_job import AnswerFailed, AnswerRequest
from sporelm.serve.conversations.answer_jobs import AnswerJobs
from sporelm.serve.conversations.answer_stats import Progress
from sporelm.serve.conversations.conversation_store import ConversationStore
from sporelm.serve.routes.conversations import conversation_routes
from sporelm.serve.webui import web_chat_routes

MARKDOWN = r"""# Rainbows

A rainbow is *refraction* and **reflection**: light bends by $n = \frac{c}{v}$, as
\(n_1 \sin\theta_1 = n_2 \sin\theta_2\) says. It costs $5, not $10.

$$
\int_0^\infty e^{-x^2}\,dx = \frac{\sqrt{\pi}}{2}, \qquad \begin{pmatrix} a & b \\ c & d \end{pmatrix}
$$

1. Light enters a drop
2. It is reflected
   - once, for the first bow
   - twice, for the second

| colour | wavelength |
|---|---:|
| red | 700 nm |
| violet | 400 nm |

```python
def primes(limit: int) -> list[int]:
    # those below `limit`
    return [n for n in range(2, limit) if all(n % d for d in range(2, int(n**0.5) + 1))]
```

> A quote, with `code` and a [link](https://example.org/rainbow).

<script>window.broken = 1</script><img src=x onerror="window.broken = 2"> ![picture](https://example.org/leak.png)
[bad](javascript:window.broken=3) List<String> stays.
"""


IMAGE_TOKENS = 1000


def pieces_for(text: str) -> tuple[list[str], float]:
    """The pieces of an answer, and the seconds between them."""
    if "markdown" in text:
        return [MARKDOWN[start : start + 7] for start in range(0, len(MARKDOWN), 7)], 0.002
    if "slow" in text:
        return [f"word{index} " for index in range(400)], 0.05
    if "long" in text:
        line = "A line of a **long** answer with `code`, $x^2$ and words.\n\n"
        return [line + ("```c\nint x = 1;\n```\n\n" if index % 20 == 0 else "") for index in range(600)], 0.0
    return [f"You said: {text}."[start : start + 4] for start in range(0, len(text) + 11, 4)], 0.005


def text_of(message: dict[str, Any]) -> str:
    """The text of a message, and how many pictures it has."""
    content = message["content"]
    if isinstance(content, str):
        return content
    pictures = sum(part["type"] == "image" for part in content)
    text = "".join(part["text"] for part in content if part["type"] == "text")
    return " ".join([text, f"with {pictures} pictures"]).strip()


class PretendChat:
    """The server, in a thread of its own, on a port of this machine that was free."""

    def __init__(
        self, folder: Path, key: str = "", chat: bool = True, port: int = 0, vision: bool | None = False
    ) -> None:
        self.key, self.chat = key, chat
        self.vision = vision  # whether pretend-135m reads pictures. Each one has IMAGE_TOKENS tokens
        self.requests: list[dict[str, Any]] = []  # bodies of what was asked for
        self.cut = 0  # answers whose reader left
        self.counted: list[dict[str, Any]] = []  # bodies of what was to be counted
        self.context = 8192  # tokens that the models hold
        self.counts = False  # whether each letter of a prompt is a token; else a prompt has 64
        self.go = threading.Event()  # what a "late" answer waits for
        self.mute = ""  # a model that has no chat template, which is known once it is loaded
        self.loaded = {"pretend-135m"}
        self.busy = 1  # how often a "busy" request is sent away
        self.jobs = AnswerJobs(ConversationStore(folder))
        routes = [
            Route("/v1/models", self.models),
            Route("/v1/completions", self.complete, methods=["POST"]),
            Route("/health", lambda request: Response("ok")),
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/api/ui/tokens", self.tokenize, methods=["POST"]),
            Route("/metrics", self.metrics),
            *conversation_routes(
                self.jobs, lambda request: request.headers.get("authorization", ""), lambda request: self.answer
            ),
            *web_chat_routes(),
        ]
        config = uvicorn.Config(
            self.guarded(Starlette(routes=routes)), port=port, log_level="error", lifespan="off", ws="none"
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.005)
        self.port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/"

    def close(self) -> None:
        """Stop at once, as if the process was killed."""
        self.go.set()
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(60)

    @property
    def connections(self) -> list[Any]:
        """The open connections."""
        return list(self._server.server_state.connections)

    def call(self, act: Callable[[], object]) -> None:
        """Do something in the server's thread."""
        self._server.servers[0].get_loop().call_soon_threadsafe(act)

    def guarded(self, app: Any) -> Any:
        """The application, where all but the page's files wants the key."""

        async def checked(scope: Any, receive: Any, send: Any) -> None:
            given = dict(scope["headers"]).get(b"authorization", b"").decode()
            is_open = scope["path"] in ("/", "/health") or scope["path"].startswith("/webui/")
            if self.key and not is_open and given != f"Bearer {self.key}":
                told = JSONResponse({"error": {"message": "the API key is wrong", "code": "unauthorized"}}, 401)
                await told(scope, receive, send)
            else:
                await app(scope, receive, send)

        return checked

    async def models(self, request: Request) -> Response:
        card = {"object": "model", "owned_by": "sporelm", "created": 0, "max_context": self.context, "loaded": True}
        cards = [
            {"id": "pretend-135m", "chat": self.chat, "vision": self.vision, **card},
            {**card, "id": "other-1b", "chat": None, "vision": False, "loaded": False},
        ]
        for each in cards:
            each["loaded"] = each["id"] in self.loaded
            if each["loaded"] and each["id"] == self.mute:
                each["chat"] = False
        return JSONResponse({"object": "list", "data": cards})

    async def answer(self, asked: AnswerRequest) -> AsyncGenerator[Progress, None]:
        """Answer a job's request as its model would."""
        self.requests.append(
            {"model": asked.model, "messages": asked.messages, "continues": asked.continue_last, **asked.settings}
        )
        text = text_of(asked.messages[-1])
        if asked.model not in self.loaded:
            yield Progress(status="loading")
            await asyncio.to_thread(self.go.wait, 60 if "late" in text else 0)
            self.loaded.add(asked.model)
        if asked.model == self.mute:
            raise AnswerFailed({"code": "no_chat_template", "model": asked.model})
        prompt = sum(len(text_of(each)) for each in asked.messages) if self.counts else 64
        if prompt >= self.context:
            raise AnswerFailed({"code": "context_length_exceeded", "tokens": prompt, "context": self.context})
        if "fail" in text or ("never" in text and asked.continue_last):
            raise AnswerFailed({"code": "refused", "detail": "the seed is out of range"})
        while "busy" in text and self.busy:
            self.busy -= 1
            yield Progress(status="busy", retry=2)
            await asyncio.sleep(2)
        pieces, pause = ([" and", " more."], 0.005) if asked.continue_last else pieces_for(text)
        cached = 0 if "uncached" in text else 48
        try:
            if "late" in text and not self.go.is_set():
                yield Progress(status="waiting", others=3)
                await asyncio.to_thread(self.go.wait, 60)
            if "think" in text:
                for word in ("First ", "I ", "think."):
                    yield Progress(reasoning=word)
            for index, piece in enumerate(pieces):
                if "break" in text and index == 3:
                    raise AnswerFailed({"code": "engine_failed", "detail": "the engine has stopped"})
                yield Progress(piece, "", prompt, index + 1, cached)
                await asyncio.sleep(pause)
        except asyncio.CancelledError:
            self.cut += 1
            raise
        finish = "length" if "cut" in text and not asked.continue_last else "stop"
        yield Progress("", "", prompt, len(pieces), cached, finish=finish)

    async def complete(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(body)
        return StreamingResponse(self.stream(body, body["prompt"]), media_type="text/event-stream")

    async def tokenize(self, request: Request) -> Response:
        """Each letter is a token, and each picture many."""
        body = await request.json()
        self.counted.append(body)
        tokens = [ord(letter) for each in body["messages"] for letter in each["content"]]
        tokens += [0] * IMAGE_TOKENS * sum(len(each.get("images", ())) for each in body["messages"])
        return JSONResponse({"tokens": tokens, "count": len(tokens), "max_model_len": self.context})

    async def metrics(self, request: Request) -> Response:
        line = 'vllm:num_requests_waiting{model_name="pretend-135m"} 3.0\n'
        return Response(line, media_type="text/plain")

    async def stream(self, body: dict[str, Any], text: str) -> AsyncIterator[str]:
        pieces, pause = pieces_for(text)

        def event(**fields: Any) -> str:
            return f"data: {json.dumps({'object': 'chunk', 'model': body['model'], **fields})}\n\n"

        def choice(piece: str, finish: str | None = None) -> dict[str, Any]:
            return {"index": 0, "finish_reason": finish, "text": piece}

        try:
            for piece in pieces:
                yield event(choices=[choice(piece)])
                await asyncio.sleep(pause)
        except asyncio.CancelledError:
            self.cut += 1
            raise
        yield event(choices=[choice("", finish="stop")])
        usage = {"prompt_tokens": 64, "completion_tokens": len(pieces), "total_tokens": 64 + len(pieces)}
        yield event(
            choices=[], usage={**usage, "prompt_tokens_details": {"cached_tokens": 0 if "uncached" in text else 48}}
        )
        yield "data: [DONE]\n\n"
