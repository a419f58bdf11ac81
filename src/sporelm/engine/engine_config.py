"""The configuration of an engine: its limits."""

from dataclasses import dataclass

from sporelm.engine.kv.page_allocator import count_pages
from sporelm.errors import ContextOverflow, RequestError


@dataclass(frozen=True)
class EngineConfig:
    """The limits of an engine. Raises RequestError for values with which nothing could run."""

    max_context: int  # positions of a sequence
    model_context: int  # positions that the model was trained for
    vocab: int
    token_budget: int  # tokens of a step
    max_batch: int  # requests that run together
    num_pages: int
    max_waiting: int = 1024  # requests that wait
    prefill_tokens: int | None = None  # of prompts, in a step in which others decode; None: measured
    num_states: int = 0  # slots of recurrent states, for models that have some
    state_interval: int = 0  # pages between two state snapshots of a text

    def __post_init__(self) -> None:
        for name in ("max_context", "vocab", "token_budget", "max_batch", "max_waiting"):
            if getattr(self, name) < 1:
                raise RequestError(f"{name} is {getattr(self, name)}: it must be at least 1")
        if self.prefill_tokens is not None and self.prefill_tokens < 1:
            raise RequestError(f"prefill_tokens is {self.prefill_tokens}: it must be at least 1")
        if self.num_states and self.state_interval < 1:
            raise RequestError(f"state_interval is {self.state_interval}: it must be at least 1")
        if self.num_pages < count_pages(self.max_context):
            raise RequestError(f"{self.num_pages} pages do not hold one context of {self.max_context} positions")

    def check_prompt(self, length: int, *, rolls: bool = False) -> None:
        """Raise ContextOverflow for a prompt that does not fit. `rolls`: the error may recommend a rolling context."""
        if length <= self.max_context:
            return
        larger = self.model_context if self.max_context < self.model_context else 0
        if larger:
            remedy = f"shorten it, or raise the option max_context (the model allows {self.model_context})"
        else:
            remedy = "shorten it: that is the model's own limit, which the option max_context cannot raise"
        if rolls:
            remedy += "; or let the window roll, with the option roll"
        fact = f"the prompt has {length} tokens, the context holds {self.max_context}"
        raise ContextOverflow(
            f"{fact}: {remedy}", fact=fact, larger=larger, rolls=rolls, tokens=length, context=self.max_context
        )
