"""The draft model of speculative decoding: its vocabulary check, its limits and its worker."""

from sporelm.api.model_loader import ModelLoader
from sporelm.backends.protocol import Progress
from sporelm.engine import EngineConfig, Worker
from sporelm.engine.capacity import MAX_INTERVAL
from sporelm.engine.speculative.speculation import ROWS
from sporelm.errors import RequestError
from sporelm.text import Tokenizer

STATES_PER_REQUEST = 3  # recurrent states of a draft model: current, before the drafts, one snapshot
MAX_PADDING_IDS = 256  # ids at the end that only one vocabulary has: vocabularies are padded to round sizes


def load_draft_worker(
    draft: ModelLoader, limits: EngineConfig, threads: int, progress: Progress | None, *, eager: bool
) -> Worker:
    """Load the draft model of a model with these `limits`. Raises like `ModelLoader`."""
    draft_limits = draft_model_limits(draft, limits)
    draft_progress = None if progress is None else _prefix_phases(progress)
    loaded = draft.load_decoder(draft_limits.max_context, threads, draft_progress)
    return draft.create_worker(loaded, draft_limits, draft_progress, eager=eager)


def draft_model_limits(draft: ModelLoader, limits: EngineConfig) -> EngineConfig:
    """Return the draft model's limits: a page for each page of the model, and recurrent states if it has them."""
    max_step_tokens = max(draft.backend.step_buckets.values())
    return EngineConfig(
        max_context=min(limits.max_context, draft.config.context_length),
        model_context=draft.config.context_length,
        vocab=draft.config.vocab,
        token_budget=max_step_tokens,
        max_batch=min(limits.max_batch, ROWS, max_step_tokens),
        num_pages=limits.num_pages,
        num_states=count_draft_states(draft, limits.max_batch),
        state_interval=MAX_INTERVAL,
    )


def count_draft_states(draft: ModelLoader, max_batch: int) -> int:
    """Return the number of recurrent states of the draft model; 0 if it has none."""
    return STATES_PER_REQUEST * min(max_batch, ROWS) if draft.state_bytes else 0


def check_vocabularies(tokenizer: Tokenizer, other: Tokenizer) -> None:
    """Raise RequestError unless both models' tokens have the same texts, apart from padding ids at the end."""
    sizes = tokenizer.vocab_size, other.vocab_size
    names = f"the draft model {other.label} has other tokens than {tokenizer.label}"
    remedy = "use a draft model of the same family"
    if abs(sizes[0] - sizes[1]) > MAX_PADDING_IDS:
        raise RequestError(f"{names}: {sizes[1]}, not {sizes[0]}; {remedy}")
    for token in range(min(sizes)):
        ours, theirs = tokenizer.token_bytes(token), other.token_bytes(token)
        if ours != theirs:
            raise RequestError(f"{names}: token {token} is {_quote(theirs)}, not {_quote(ours)}; {remedy}")


def _quote(text: bytes) -> str:
    return f"{text.decode('utf-8', 'replace')!r:.40}"


def _prefix_phases(progress: Progress) -> Progress:
    """Return a progress callback that marks its phases as the draft model's."""

    def report(phase: str, done: int, total: int) -> None:
        progress(f"draft {phase}", done, total)

    return report
