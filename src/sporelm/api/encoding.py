"""An encoder on its way into memory: what it may hold, and its engine."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sporelm.api.incoming import Incoming
from sporelm.backends.backend import Progress
from sporelm.engine import Limits
from sporelm.engine.capacity import DEFAULT_CONTEXT
from sporelm.engine.encoding import EncoderRunner
from sporelm.engine.kv.pages import pages_for
from sporelm.engine.kv.session_folder import DEFAULT_BYTES
from sporelm.engine.reading import MOST_TEXTS, EncoderEngine, EncoderWorker
from sporelm.errors import MemoryShortage, RequestError, shown
from sporelm.models import Encoder, model_of
from sporelm.weights.load import ModelSource, in_units
from sporelm.weights.resident import available_on

if TYPE_CHECKING:
    from sporelm.api.loading import Options


# Options of `LLM` for which an encoder has no use: it generates nothing, and keeps nothing from step to step.
OF_DECODERS = ("speculate", "draft_model", "session_dir", "session_bytes", "kv_memory", "kv", "chat_template")


def of_this_kind(options: "Options", source: ModelSource) -> "Options":
    """Options that are for models of any kind, for this one: an encoder has its own context, and no use for others."""
    if not options.any_kind or not issubclass(model_of(source.config.architecture), Encoder):
        return options
    spare: dict[str, Any] = dict.fromkeys((*OF_DECODERS, "max_context"))
    return replace(options, **{**spare, "session_bytes": DEFAULT_BYTES})


def check_options(options: "Options", draft: Incoming | None) -> None:
    """Raise RequestError for what an encoder has no use for."""
    given = {name: getattr(options, name) for name in OF_DECODERS if name != "session_bytes"} | {"draft_model": draft}
    for name, value in given.items():
        if value is not None:
            what = f"--{name.replace('_', '-')} is given"
            raise RequestError(f"{what}, but this model is an encoder, which generates nothing: leave it out")


def encoder_limits(options: "Options", model: Incoming) -> Limits:
    """What the engine may hold: a text of its context is one step, whose values must find room beside the weights.

    Raises RequestError for a context that the model does not have, MemoryShortage for one that does not fit.
    """
    config, available = model.config, available_on(model.backend)
    asked = options.max_context
    if asked is not None and not 1 <= asked <= config.context_length:
        raise RequestError(f"--max-context is {shown(asked)}: this model allows 1 to {config.context_length}")
    context = asked or min(config.context_length, DEFAULT_CONTEXT)
    if available is not None and available > model.nbytes:
        free, each = available - model.nbytes, text_bytes(model, 1)
        if each * context > free:
            if asked is not None or free < each:
                raise MemoryShortage(
                    f"a text of {context} tokens needs {in_units(each * context)} for a step, {in_units(free)} are "
                    "available beside the weights: give a smaller --max-context"
                )
            context = free // each
    most = max(model.backend.regimes.values())
    return Limits(
        max_context=context,
        model_context=config.context_length,
        vocab=config.vocab,
        token_budget=max(context, most),
        max_batch=min(options.max_batch, most),
        num_pages=pages_for(context),
    )


def text_bytes(model: Incoming, tokens: int) -> int:
    """About what the values of a step of so many tokens take: what one layer computes, its keys and values included."""
    beside = model.model.beside if isinstance(model.model, Encoder) else 0
    return tokens * 4 * (12 * model.config.width + 3 * model.config.ffn + beside)


def encoder_engine(
    options: "Options", model: Incoming, limits: Limits, threads: int, progress: Progress | None
) -> EncoderEngine:
    """The engine, its weights read and its programs made. Raises ModelFileError, MemoryShortage."""
    encoder, most = model.model, max(model.backend.regimes.values())
    assert isinstance(encoder, Encoder)
    runner = EncoderRunner(
        encoder,
        model.weights(limits.max_context, threads, progress),
        model.backend,
        most_tokens=limits.token_budget,
        most_texts=MOST_TEXTS,
        eager=options.eager,
    )
    worker = EncoderWorker(runner, model.backend, limits)
    try:
        worker.prepare(progress)
    except BaseException:
        worker.close()
        raise
    return EncoderEngine(worker, limits, min(most, options.token_budget or most))
