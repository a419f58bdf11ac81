"""The draft model beside a model: whether it is of the same tokens, what it may hold, and its worker."""

from sporelm.api.incoming import Incoming
from sporelm.backends.backend import Progress
from sporelm.engine import Limits, Worker
from sporelm.engine.capacity import MOST_INTERVAL
from sporelm.engine.speculative.speculation import ROWS
from sporelm.errors import RequestError
from sporelm.text import Tokenizer

STATES = 3  # of a draft model that keeps recurrent states, for each request: its own, that before guesses, one kept
PADDING = 256  # ids at the end that only one of two vocabularies has: they are padded to round sizes


def draft_worker(draft: Incoming, limits: Limits, threads: int, progress: Progress | None, *, eager: bool) -> Worker:
    """The worker of the draft model, beside a model of these `limits`. Raises as `Incoming`."""
    own = draft_limits(draft, limits)
    told = None if progress is None else _of_draft(progress)
    return draft.worker(draft.loaded(own.max_context, threads, told), own, told, eager=eager)


def draft_limits(draft: Incoming, limits: Limits) -> Limits:
    """What the draft model holds at most: a page for each page of the model, and states if it keeps such."""
    most = max(draft.backend.regimes.values())
    return Limits(
        max_context=min(limits.max_context, draft.config.context_length),
        model_context=draft.config.context_length,
        vocab=draft.config.vocab,
        token_budget=most,
        max_batch=min(limits.max_batch, ROWS, most),
        num_pages=limits.num_pages,
        num_states=draft_states(draft, limits.max_batch),
        state_interval=MOST_INTERVAL,
    )


def draft_states(draft: Incoming, max_batch: int) -> int:
    """How many recurrent states the draft model has; 0 for one that keeps none."""
    return STATES * min(max_batch, ROWS) if draft.state_bytes else 0


def check_vocabularies(tokenizer: Tokenizer, other: Tokenizer) -> None:
    """Raise RequestError unless the draft model's tokens have the same texts, but for ids that pad one of the two."""
    sizes = tokenizer.vocab_size, other.vocab_size
    names = f"the draft model {other.label} has other tokens than {tokenizer.label}"
    remedy = "take a draft model of the same family"
    if abs(sizes[0] - sizes[1]) > PADDING:
        raise RequestError(f"{names}: {sizes[1]}, not {sizes[0]}; {remedy}")
    for token in range(min(sizes)):
        ours, theirs = tokenizer.token_bytes(token), other.token_bytes(token)
        if ours != theirs:
            raise RequestError(f"{names}: token {token} is {_shown(theirs)}, not {_shown(ours)}; {remedy}")


def _shown(text: bytes) -> str:
    return f"{text.decode('utf-8', 'replace')!r:.40}"


def _of_draft(progress: Progress) -> Progress:
    """Progress whose stages say that they are the draft model's."""

    def tell(stage: str, done: int, total: int) -> None:
        progress(f"draft {stage}", done, total)

    return tell
