"""ServedModel: a loaded model with its users, its memory and the health of its engine."""

import asyncio
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from time import monotonic, time

from sporelm import __version__
from sporelm.api.async_llm import AsyncLLM
from sporelm.api.llm import LLM
from sporelm.serve.chat.answer_stream import Notifier
from sporelm.serve.http.path_redaction import redact_paths
from sporelm.units import in_units

PING_SECONDS = 0.25  # between two checks that an engine still steps
SLOW_FACTOR = 3  # an engine may take this many times the duration of its largest step before it counts as stalled,
MAX_PATIENCE_SECONDS = 60.0  # but no longer than this


@dataclass(eq=False)
class ServedModel:
    """A loaded model. It stays loaded while requests use it."""

    name: str
    async_llm: AsyncLLM
    notifier: Notifier
    num_users: int = 0
    last_used_at: float = field(default_factory=monotonic)
    loaded_at: float = field(default_factory=time)  # seconds since 1970
    unresponsive_seconds: float = 0.0  # since the engine was pinged; 0 once it has answered
    ping_task: "asyncio.Task[None] | None" = None

    @property
    def llm(self) -> LLM:
        return self.async_llm.llm

    @property
    def can_see(self) -> bool:
        """Whether messages may contain images."""
        return self.llm.can_see

    @cached_property
    def fingerprint(self) -> str:
        """The `system_fingerprint` of replies: a hash of everything that can change the answer to the same request and
        seed, which is the version, the model's files, back-end, KV type, chat template and adapters."""
        llm = self.llm
        adapters = (llm.adapters.names, llm.adapters.default)
        parts = (__version__, llm.identity, llm.backend.name, llm.kv, llm.tokenizer.chat_template or "", adapters)
        return f"fp_{sha256(repr(parts).encode()).hexdigest()[:12]}"

    @property
    def nbytes(self) -> int:
        """Bytes of the weights and the KV cache."""
        return self.llm.model_bytes + self.kv_bytes

    @property
    def kv_bytes(self) -> int:
        """Bytes of the KV cache and of recurrent states when all of it is in use."""
        return self.llm.kv_bytes

    @property
    def is_restarting(self) -> bool:
        """Whether lost ranks are being started again."""
        return self.async_llm.failure is None and self.llm.is_restarting

    def problem(self, stall_seconds: float) -> str | None:
        """Return why the engine cannot answer; None if it is healthy."""
        failure = self.async_llm.failure
        if failure is not None:
            return f"the engine of {self.name} failed: {redact_paths(str(failure))}"
        if self.is_restarting:
            return f"the ranks of {self.name} are being started again: requests wait until then"
        slow_seconds = min(SLOW_FACTOR * self.llm.max_step_seconds, MAX_PATIENCE_SECONDS)
        max_seconds = max(stall_seconds, slow_seconds)
        if self.unresponsive_seconds > max_seconds:
            return f"the engine of {self.name} did not finish a step in {max_seconds:.3g} s"
        return None

    async def ping(self) -> None:
        """Check again and again that the engine steps.

        Only time during which the event loop runs counts: a process that was suspended is not unhealthy.
        """
        while True:
            ping = asyncio.ensure_future(self.async_llm.run_between_steps(_do_nothing))
            try:
                while not (await asyncio.wait({ping}, timeout=PING_SECONDS))[0]:
                    if not self.is_restarting:
                        self.unresponsive_seconds += PING_SECONDS
                await ping
            finally:
                ping.cancel()
            self.unresponsive_seconds = 0.0
            await asyncio.sleep(PING_SECONDS)


def _do_nothing() -> None:
    """The work of a ping."""


def memory_limit_message(newest: ServedModel, used_bytes: int, max_bytes: int) -> str:
    """Describe why more than `max_bytes` are loaded: a model turned out larger than its files, beside others in use."""
    message = (
        f"{newest.name} takes {in_units(newest.nbytes)}, including {in_units(newest.kv_bytes)} for keys and values"
    )
    if used_bytes > newest.nbytes:
        message += f"; with those in use it is {in_units(used_bytes)}"
    return f"{message}: model_memory is {in_units(max_bytes)}; give a smaller --kv-memory, or more --model-memory"
