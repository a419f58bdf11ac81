"""One model that is loaded: who uses it, what it takes, and whether its engine still steps."""

import asyncio
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from time import monotonic, time

from sporelm import __version__
from sporelm.api.async_llm import AsyncLLM
from sporelm.engine.capacity import bytes_per_page, bytes_per_state
from sporelm.ops.cache import KV_TYPES
from sporelm.serve.answering import Bell
from sporelm.serve.failures import without_paths
from sporelm.weights.load import in_units

PING_SECONDS = 0.25  # between two questions to an engine whether it still steps
SLOW = 3  # times what its largest step takes, until which an engine is slow and not dead, but not longer than
PATIENCE = 60.0  # seconds


@dataclass(eq=False)
class ServedModel:
    """A model that is loaded. Those who use it are counted, and it stays while there are any."""

    name: str
    llm: AsyncLLM
    bell: Bell
    users: int = 0
    used_at: float = field(default_factory=monotonic)
    loaded_at: float = field(default_factory=time)  # seconds since 1970
    silent: float = 0.0  # seconds since the engine was asked whether it steps, until it says so
    pinging: "asyncio.Task[None] | None" = None

    @cached_property
    def fingerprint(self) -> str:
        """The `system_fingerprint` of replies: it changes with all that could change an answer to the same request and
        seed, which is the version, the model's files, back-end, KV type, chat template and
        adapters."""
        llm = self.llm.llm
        template, adapters = llm.tokenizer.chat_template or "", (llm.adapters.names, llm.adapters.default)
        parts = (__version__, llm.opened.identity, llm.backend.name, llm.kv, template, adapters)
        return f"fp_{sha256(repr(parts).encode()).hexdigest()[:12]}"

    @property
    def nbytes(self) -> int:
        """Of the weights and the KV cache."""
        return self.llm.llm.model_bytes + self.kv_bytes

    @property
    def kv_bytes(self) -> int:
        """Of the KV cache, and of recurrent states, were all of it used."""
        engine, llm = self.llm.llm.engine, self.llm.llm
        kept = llm.opened.worker.runner.model.memory()
        page = bytes_per_page(kept, llm.backend, KV_TYPES[llm.kv])
        state = bytes_per_state(kept, llm.backend)
        return engine.limits.num_pages * page + engine.limits.num_states * state

    def trouble(self, stall_seconds: float) -> str | None:
        """Why nothing can be hoped for from this engine; None if it is well."""
        if self.llm.pump.failure is not None:
            return f"the engine of {self.name} failed: {without_paths(str(self.llm.pump.failure))}"
        engine = self.llm.llm.engine
        slow = SLOW * engine.scheduler.pace.seconds_of(engine.limits.token_budget)
        longest = max(stall_seconds, min(slow, PATIENCE))
        if self.silent > longest:
            return f"the engine of {self.name} did not finish a step in {longest:.3g} s"
        return None

    async def ping(self) -> None:
        """Ask the engine again and again whether it steps. Only time in which this loop runs counts: when all of the
        process was stopped for a while, and goes on, nothing is wrong."""
        while True:
            asked = asyncio.ensure_future(self.llm.between_steps(_nothing))
            try:
                while not (await asyncio.wait({asked}, timeout=PING_SECONDS))[0]:
                    self.silent += PING_SECONDS
                await asked
            finally:
                asked.cancel()
            self.silent = 0.0
            await asyncio.sleep(PING_SECONDS)


def _nothing() -> None:
    """What an engine is asked to do that is to show that it can."""


def too_large(newest: ServedModel, held: int, most: int) -> str:
    """Why more is loaded than `most` bytes: by a model that is larger than its files said, beside others in use."""
    told = f"{newest.name} takes {in_units(newest.nbytes)}, of which {in_units(newest.kv_bytes)} for keys and values"
    if held > newest.nbytes:
        told += f"; with those in use it is {in_units(held)}"
    return f"{told}: model_memory is {in_units(most)}; give a smaller --kv-memory, or more --model-memory"
