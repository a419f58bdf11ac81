"""Acts of the clients that load an engine in a soak: requests, cancellations, and mistakes of users."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from sporelm import AsyncLLM, Conversation, Grammar, SamplingParams
from sporelm.errors import SporeError

MAX_TALKS = 6
MAX_CHECKED = 60  # answers that are generated again at the end, alone
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}}, "required": ["name"]}
GRAMMARS: list[dict[str, Any]] = [
    {"regex": r"[a-z]{2,9}( [a-z]{1,9}){0,5}"},
    {"choice": ["yes", "no", "perhaps"]},
    {"json_schema": SCHEMA},
]
BOMBS: list[dict[str, Any]] = [
    {"regex": "(" * 3000 + "a" + ")" * 3000},
    {"regex": "((a{1,300}){1,300}){1,300}"},
    {"regex": "(a"},
    {"lark": "start: x\nx: x x | x x x | /a*/"},
    {"lark": "start: " + " ".join(f'("a{number}" | "b")*' for number in range(2000))},
    {"json_schema": {"type": "nothing"}},
]


@dataclass
class Load:
    """State that the clients share: prompts, open conversations, answers to check, and faults."""

    llm: AsyncLLM
    folder: Path
    random: Random
    acts: dict[str, int] = field(default_factory=dict)
    refused: int = 0
    faults: list[str] = field(default_factory=list)
    checked: list[tuple[list[int], SamplingParams, list[int]]] = field(default_factory=list)
    talks: list[Conversation] = field(default_factory=list)
    files: int = 0

    def __post_init__(self) -> None:
        room, vocab = self.llm.llm.max_context, self.llm.llm.config.vocab
        self.texts = [[self.random.randrange(vocab) for _ in range(room)] for _ in range(4)]

    def prompt(self) -> list[int]:
        """Random token ids. Many prompts share a prefix; short prompts are more frequent."""
        room = self.llm.llm.max_context - 40
        length = min(room, int(room * self.random.random() ** 3) + 1)
        tail = [self.random.randrange(self.llm.llm.config.vocab) for _ in range(self.random.randrange(1, 4))]
        return self.random.choice(self.texts)[:length] + tail

    def params(self, **changes: Any) -> SamplingParams:
        """Random sampling parameters."""
        random = self.random
        chosen: dict[str, Any] = {
            "max_tokens": random.choice([1, 5, 20, 60]),
            "temperature": random.choice([0.0, 0.0, 0.7, 1.3]),
            "top_k": random.choice([0, 5, 40]),
            "top_p": random.choice([1.0, 0.9]),
            "seed": random.randrange(1 << 30),
            "ignore_eos": random.random() < 0.5,
            "salt": random.choice(["", "", "a"]),
            "repetition_penalty": random.choice([1.0, 1.0, 1.2]),
            "logprobs": random.choice([None, None, 0, 3]),
            "stop": random.choice([(), (), ["the"], ["."]]),
        }
        if random.random() < 0.1:
            chosen["grammar"] = Grammar(**random.choice(GRAMMARS))
        return SamplingParams(**chosen | changes)


async def generate(load: Load) -> None:
    """Generate one answer or several; some are generated again at the end and compared."""
    prompt, params = load.prompt(), load.params(n=load.random.choice([1, 1, 1, 2, 3]))
    answer = await load.llm.generate(prompt, params)
    if answer.finish_reason not in ("stop", "length") and params.grammar is None:
        load.faults.append(f"an answer ended with {answer.finish_reason}: {answer.error}")
    elif params.n == 1 and answer.finish_reason != "error":
        if len(load.checked) < MAX_CHECKED:
            load.checked.append((prompt, params, answer.token_ids))
        elif load.random.random() < 0.05:
            load.checked[load.random.randrange(MAX_CHECKED)] = (prompt, params, answer.token_ids)


async def leave(load: Load) -> None:
    """Close a stream after a few pieces, possibly while its prompt is being computed."""
    remaining = load.random.randrange(6)
    async with aclosing(load.llm.stream(load.prompt(), load.params(max_tokens=100))) as pieces:
        async for _ in pieces:
            remaining -= 1
            if remaining <= 0:
                return


async def cancel(load: Load) -> None:
    """Cancel a task at a random moment."""
    task = asyncio.ensure_future(load.llm.generate(load.prompt(), load.params(max_tokens=100)))
    await asyncio.sleep(load.random.random() ** 2 * 0.3)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def forget(load: Load) -> None:
    """Drop a stream without closing it: the event loop closes it when it is garbage-collected."""
    pieces = load.llm.stream(load.prompt(), load.params())
    async for _ in pieces:
        break


async def vectors(load: Load) -> None:
    """Compute embeddings or logits in another thread."""
    ids = load.prompt()[: load.random.choice([1, 30, 200])]
    llm = load.llm.llm
    if load.random.random() < 0.5:
        found = await asyncio.to_thread(llm.embed, [ids, ids[:1]], pooling=load.random.choice(["mean", "last", "cls"]))
    else:
        found = await asyncio.to_thread(llm.logits, ids)
    if not (found == found).all():
        load.faults.append("a vector is not a number")


async def mistake(load: Load) -> None:
    """Send an invalid request, which must be refused."""
    room, vocab = load.llm.llm.max_context, load.llm.llm.config.vocab
    wrong: list[Callable[[], Awaitable[Any]]] = [
        lambda: load.llm.generate([1] * (room + 1)),
        lambda: load.llm.generate([vocab]),
        lambda: load.llm.generate([]),
        lambda: load.llm.generate("x", SamplingParams(temperature=float("nan"))),
        lambda: load.llm.generate("x", SamplingParams(mirostat=2, temperature=0.0)),
        lambda: asyncio.to_thread(load.llm.llm.embed, [[1]], pooling="none"),
        lambda: asyncio.to_thread(load.llm.llm.logits, [vocab]),
        lambda: asyncio.to_thread(load.llm.llm.wake, load.folder / "none"),
    ]
    try:
        await load.random.choice(wrong)()
    except SporeError:
        load.refused += 1
    else:
        load.faults.append("an invalid request was served")


async def bomb(load: Load) -> None:
    """Use a grammar that is too expensive: it is refused, or fails only its own answer."""
    try:
        await load.llm.generate("Once", load.params(grammar=Grammar(**load.random.choice(BOMBS)), max_tokens=20))
    except SporeError:
        load.refused += 1


async def talk(load: Load) -> None:
    """Ask, fork, revert, save and restore, or close a conversation."""
    mine = load.talks.pop(load.random.randrange(len(load.talks))) if len(load.talks) >= MAX_TALKS else None
    act = load.random.choice(["ask", "ask", "leave", "fork", "revert", "sleep", "close"])
    load.files += 1
    path, params = load.folder / f"{load.files}.session", load.params(grammar=None, max_tokens=12)
    load.talks += await asyncio.to_thread(_talk, load.llm, mine, act, path, params)


def _talk(llm: AsyncLLM, talk: Conversation | None, act: str, path: Path, params: SamplingParams) -> list[Conversation]:
    """Perform one act on a conversation, or on a new one; return the conversations that stay open."""
    talk = llm.llm.conversation() if talk is None else talk
    try:
        if act == "close":
            talk.close()
            return []
        if act == "sleep":
            talk.sleep(path)
            talk = llm.llm.wake(path)
            path.unlink()
        elif act == "revert":
            talk.revert(max(0, len(talk.messages) - 2))
        elif act == "fork":
            return [talk, talk.fork()] if len(talk.messages) < 4 else [talk]
        pieces = talk.ask("Tell me", params)
        for number, _ in enumerate(pieces):
            if act == "leave" and number > 3:
                break
        pieces.close()
        return [talk]
    except SporeError:  # its history has become too long
        talk.close()
        return []


ACTS: dict[str, tuple[Callable[[Load], Awaitable[None]], int]] = {
    "generate": (generate, 10),
    "leave": (leave, 3),
    "cancel": (cancel, 3),
    "forget": (forget, 1),
    "vectors": (vectors, 1),
    "mistake": (mistake, 2),
    "bomb": (bomb, 1),
    "talk": (talk, 3),
}


async def act(load: Load, patience_s: float) -> None:
    """Perform one random act. A timeout, or an exception that is not a SporeError, is a fault."""
    name = load.random.choices(list(ACTS), [weight for _, weight in ACTS.values()])[0]
    load.acts[name] = load.acts.get(name, 0) + 1
    try:
        await asyncio.wait_for(ACTS[name][0](load), patience_s)
    except TimeoutError:
        load.faults.append(f"{name} did not end within {patience_s:.0f} s")
    except Exception as reason:
        load.faults.append(f"{name}: {type(reason).__name__}: {reason}"[:300])
