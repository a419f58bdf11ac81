"""Load an encoder: check its options, choose its limits, create its engine."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sporelm.api.model_loader import ModelLoader
from sporelm.backends.memory_residency import available_on
from sporelm.backends.protocol import Progress
from sporelm.checkpoints.loader import ModelSource
from sporelm.engine import EngineConfig
from sporelm.engine.capacity import DEFAULT_CONTEXT
from sporelm.engine.encoder_engine import MAX_TEXTS, EncoderEngine, EncoderWorker
from sporelm.engine.encoder_runner import EncoderRunner
from sporelm.engine.kv.offload import DEFAULT_MAX_BYTES
from sporelm.engine.kv.page_allocator import count_pages
from sporelm.errors import MemoryShortage, RequestError, safe_repr
from sporelm.models import Encoder
from sporelm.units import in_units

if TYPE_CHECKING:
    from sporelm.api.engine_loader import EngineOptions


# Options of `LLM` that an encoder does not use: it generates no text, and has no cache between steps.
DECODER_OPTIONS = (
    *("speculate", "draft_model", "session_dir", "session_bytes", "kv_memory", "kv", "chat_template"),
    *("device_memory", "experts_on"),
)


def drop_unused_options(options: "EngineOptions", source: ModelSource) -> "EngineOptions":
    """Return the options without those an encoder does not use, if this is one and `any_kind` allows it."""
    if not options.any_kind or not issubclass(source.schema.architecture, Encoder):
        return options
    unused: dict[str, Any] = dict.fromkeys((*DECODER_OPTIONS, "max_context"))
    return replace(options, **{**unused, "session_bytes": DEFAULT_MAX_BYTES})


def check_options(options: "EngineOptions", draft: ModelLoader | None) -> None:
    """Raise RequestError for an option that an encoder does not use."""
    values = {name: getattr(options, name) for name in DECODER_OPTIONS if name != "session_bytes"} | {
        "draft_model": draft
    }
    for name, value in values.items():
        if value is not None:
            raise RequestError(f"the option {name}: this model is an encoder, which generates no text. Leave it out")


def encoder_limits(options: "EngineOptions", model: ModelLoader) -> EngineConfig:
    """Return the engine's limits. A text is one step, so the activations of a full context must fit beside the weights.

    Raises RequestError for a context that the model does not support, MemoryShortage for one that does not fit.
    """
    config = model.config
    available = available_on(model.backend)
    requested = options.max_context
    if requested is not None and not 1 <= requested <= config.context_length:
        raise RequestError(
            f"the option max_context is {safe_repr(requested)}: this model allows 1 to {config.context_length}"
        )
    context = requested or min(config.context_length, DEFAULT_CONTEXT)
    if available is not None and available > model.nbytes:
        free = available - model.nbytes
        bytes_per_token = text_bytes(model, 1)
        if bytes_per_token * context > free:
            if requested is not None or free < bytes_per_token:
                raise MemoryShortage(
                    f"a text of {context} tokens needs {in_units(bytes_per_token * context)} for a step, "
                    f"{in_units(free)} are available beside the weights: lower the option max_context"
                )
            context = free // bytes_per_token
    max_step_tokens = max(model.backend.step_buckets.values())
    return EngineConfig(
        max_context=context,
        model_context=config.context_length,
        vocab=config.vocab,
        token_budget=max(context, max_step_tokens),
        max_batch=min(options.batch_limit, max_step_tokens),
        num_pages=count_pages(context),
    )


def text_bytes(model: ModelLoader, num_tokens: int) -> int:
    """Return an estimate of the bytes of activations in a step: one layer's, including its keys and values."""
    extra = model.model.extra_values_per_token if isinstance(model.model, Encoder) else 0
    return num_tokens * 4 * (12 * model.config.width + 3 * model.config.ffn + extra)


def load_encoder_engine(
    options: "EngineOptions", model: ModelLoader, limits: EngineConfig, threads: int, progress: Progress | None
) -> EncoderEngine:
    """Load the weights, compile the programs and return the engine. Raises ModelFileError, MemoryShortage."""
    encoder = model.model
    max_step_tokens = max(model.backend.step_buckets.values())
    assert isinstance(encoder, Encoder)
    runner = EncoderRunner(
        encoder,
        model.load_weights(limits.max_context, threads, progress),
        model.backend,
        max_tokens=limits.token_budget,
        max_texts=MAX_TEXTS,
        eager=options.eager,
    )
    worker = EncoderWorker(runner, model.backend)
    try:
        worker.prepare(progress)
    except BaseException:
        worker.close()
        raise
    return EncoderEngine(worker, limits, min(max_step_tokens, options.token_budget or max_step_tokens))
