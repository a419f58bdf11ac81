"""A loaded model: its engine, tokenizer, chat template and LoRA adapters, and the conversion of prompts to ids."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from sporelm.api.completion import Timings
from sporelm.api.device_split import DeviceSplit
from sporelm.api.embeddings import truncate_ids
from sporelm.api.engine_loader import EngineOptions, LoadedEngine, load_engine
from sporelm.api.image_budget import IsCancelled
from sporelm.api.image_inputs import ImageReader, TakenImages, has_pictures
from sporelm.api.lora_adapters import AdapterRegistry, LoraAdapter, parse_adapters
from sporelm.api.tower_loading import find_mmproj
from sporelm.api.trace_and_record import TraceAndRecord
from sporelm.backends.protocol import Backend, Progress
from sporelm.checkpoints.prompts import Prompts, read_prompts
from sporelm.engine import Engine, Metrics
from sporelm.engine.capacity import bytes_per_page, bytes_per_state
from sporelm.engine.encoder_engine import EncoderEngine
from sporelm.engine.prompt_images import PromptIds
from sporelm.engine.ranks.worker_group import WorkerGroup
from sporelm.engine.request import parse_token_ids
from sporelm.errors import ContextOverflow, RequestError, safe_repr
from sporelm.models.config import ModelConfig
from sporelm.ops.canonical_pages import KV_TYPES
from sporelm.text import RenderedPrompt, Tokenizer
from sporelm.text.chat_templates.chat_messages import with_known_roles

if TYPE_CHECKING:
    from sporelm.api.isolation import Isolation
    from sporelm.text import ChatTemplate
    from sporelm.vision.image_processor import ProcessedImage

MAX_UNCHECKED_CHARS = 1 << 20  # a text up to this length is tokenized whatever the context
Prompt = str | Sequence[int] | RenderedPrompt
Message = Mapping[str, Any]


class LoadedLLM:
    """The state of `LLM` from its options to `close`, and the methods that turn prompts into token ids."""

    def __init__(
        self,
        options: EngineOptions,
        progress: Progress | None,
        trace: str | Path | None,
        record: str | Path | None,
        adapters: Sequence[str | Path | LoraAdapter],
        announce: Callable[[str], None] | None = None,
    ) -> None:
        """Load the model and its adapters. Raises SporeError; then nothing stays open."""
        adapter_sources = parse_adapters(adapters)
        self.trace_and_record = TraceAndRecord(trace, record)
        try:
            self._loaded_engine: LoadedEngine | None = load_engine(options, progress, announce=announce)
        except BaseException:
            self.trace_and_record.close()
            raise
        self.config: ModelConfig = self._loaded_engine.config
        self.tokenizer: Tokenizer = self._loaded_engine.tokenizer
        self.max_context = self._loaded_engine.engine.limits.max_context
        self.model_bytes = self._loaded_engine.model_bytes
        self.expert_bytes = self._loaded_engine.expert_bytes
        self.threads = self._loaded_engine.threads
        self.kv = self._loaded_engine.kv
        self.notes = self._loaded_engine.notes
        self.adapters = AdapterRegistry(self)
        self._metrics = self._loaded_engine.engine.metrics
        self._templates: dict[tuple[str, bool], ChatTemplate] = {}  # by source, and whether a process renders
        self.isolation: Isolation | None = None  # None: templates and grammars are processed in the calling thread
        self.vision_remedy = ""  # the remedy in errors for pictures without a vision tower; "": `describe_towers`
        self._prompts: Prompts | None = None  # read when first needed
        try:
            self.trace_and_record.start(self._loaded_engine)
            self.adapters.load(adapter_sources)
        except BaseException:
            self.close()
            raise

    @property
    def loaded_engine(self) -> LoadedEngine:
        """The engine and its parts. Raises RequestError after `close`."""
        if self._loaded_engine is None:
            raise RequestError("this model is closed: open it again")
        return self._loaded_engine

    @property
    def image_reader(self) -> ImageReader | None:
        """The reader that turns pictures into inputs of the model; None without a vision tower."""
        return self.loaded_engine.image_reader

    @property
    def can_see(self) -> bool:
        """Whether the model takes pictures."""
        return self.image_reader is not None

    @property
    def is_open(self) -> bool:
        """Whether `close` has not been called."""
        return self._loaded_engine is not None

    @property
    def is_restarting(self) -> bool:
        """Whether the ranks are being started again after a loss; requests wait meanwhile. Any thread may read it."""
        worker = self._loaded_engine.worker if self._loaded_engine is not None else None
        return isinstance(worker, WorkerGroup) and worker.is_restarting

    @property
    def inference_engine(self) -> Engine | EncoderEngine:
        """The engine, whether it generates text or not."""
        return self.loaded_engine.engine

    @property
    def engine(self) -> Engine:
        """The engine of a model that is not an encoder. Raises RequestError, which names the alternative, for one."""
        return self.loaded_engine.decoder_engine

    @property
    def backend(self) -> Backend:
        return self.loaded_engine.backend

    @property
    def split(self) -> DeviceSplit | None:
        """The split of the model between a device and the CPU; None if one back-end has all of it."""
        return self.loaded_engine.split

    @property
    def path(self) -> Path:
        """The model's file or folder."""
        return self.loaded_engine.path

    @property
    def identity(self) -> str:
        """A hash of the model's files: 64 hexadecimal digits."""
        return self.loaded_engine.identity

    @property
    def kv_bytes(self) -> int:
        """Bytes of the KV cache and of recurrent states when all of it is in use."""
        memory, limits = self.loaded_engine.worker.runner.model.memory(), self.inference_engine.limits
        page = bytes_per_page(memory, self.backend, KV_TYPES[self.kv])
        state = bytes_per_state(memory, self.backend)
        return limits.num_pages * page + limits.num_states * state

    @property
    def max_batch(self) -> int:
        """The maximum number of requests in a batch."""
        return self.inference_engine.limits.max_batch

    @property
    def max_step_seconds(self) -> float:
        """An estimate of the duration of the largest step; 0 before any step was measured."""
        return self.inference_engine.estimate_step_seconds()

    def check_prompt_length(self, num_tokens: int) -> None:
        """Raise ContextOverflow for a prompt of more tokens than the context holds."""
        self.inference_engine.limits.check_prompt(num_tokens)

    @property
    def metrics(self) -> Metrics:
        """Counters and histograms of the requests so far. Any thread may read them, also after `close`."""
        return self._metrics

    @property
    def timings(self) -> Timings:
        """The seconds spent loading and compiling so far."""
        return Timings(self.loaded_engine.load_s, self.loaded_engine.compile_s)

    @property
    def can_generate(self) -> bool:
        """Whether the model generates text: it is not an encoder or a reranker, and has an output head."""
        return isinstance(self.inference_engine, Engine) and not self.config.labels and not self.config.is_headless

    def check_can_generate(self) -> None:
        """Raise RequestError, which names the alternative, for a model that does not generate text."""
        self.loaded_engine.check_decoder()
        if self.config.labels:
            raise RequestError(f"{self.config.name} is a reranker, which generates no text: use it to rerank")
        if self.config.is_headless:
            raise RequestError(f"{self.config.name} has no output head and generates no text: use it for embeddings")

    @property
    def template(self) -> "ChatTemplate":
        """The model's chat template. Raises RequestError if it has none, or generates no text."""
        return self.chat_template()

    def chat_template(self, *, tools: bool = False) -> "ChatTemplate":
        """Return the model's chat template; with `tools`, its template for tools if any. Raises like `template`."""
        from sporelm.text import ChatTemplate

        self.check_can_generate()
        template = ChatTemplate.of(self.tokenizer, tools=tools)
        if self.image_reader is None and self.isolation is None:
            return template
        key = (template.source, self.isolation is not None)
        if key not in self._templates:  # a copy would find out again what it supports
            if self.image_reader is not None:
                template = template.with_images(self.image_reader.processor.placeholder, self.image_reader.image_text)
            if self.isolation is not None:
                template = template.with_process(self.isolation.renderer, self.isolation.render_seconds)
            self._templates[key] = template
        return self._templates[key]

    def load_adapter(self, path: str | Path, name: str | None = None, scale: float = 1.0) -> str:
        """Load a LoRA adapter for requests that name it, `SamplingParams(adapter=NAME)`. Returns its name.

        path   a PEFT folder, or a .gguf adapter of llama.cpp
        name   None: the name of the folder or file
        scale  multiplies the adapter's contribution

        Running requests are not disturbed. Raises RequestError for a name in use or one adapter too many;
        ModelNotFound, ModelFileError, UnsupportedModel and MemoryShortage for the files.
        """
        return self.adapters.load([LoraAdapter(path, name, scale)])[0]

    def unload_adapter(self, name: str) -> None:
        """Unload an adapter. Raises RequestError for an unknown name, or while requests use the adapter."""
        self.adapters.unload(name)

    def close(self) -> None:
        """Free the model's memory and threads. Closing twice does nothing."""
        if self._loaded_engine is not None:
            self.trace_and_record.close()
            self._loaded_engine.close()
            self._loaded_engine = None
            self.adapters = AdapterRegistry(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        kind = type(self).__name__
        raise TypeError(f"an {kind} cannot be pickled or copied: open the model again where it is needed")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.config.name}, context {self.max_context}, kv {self.kv})"

    def check_text_length(self, text: str) -> None:
        """Raise ContextOverflow for a text that is certainly too long, since tokenizing it would take seconds.

        That is a text of more characters than MAX_UNCHECKED_CHARS and than the tokens of a full context can have.
        """
        if len(text) <= MAX_UNCHECKED_CHARS:
            return
        longest_token = max(len(self.tokenizer.token_bytes(token)) for token in range(self.tokenizer.vocab_size))
        max_chars = max(MAX_UNCHECKED_CHARS, self.max_context * longest_token)
        if len(text) > max_chars:
            raise ContextOverflow(
                f"the text has {len(text)} characters: at most {max_chars} fit in a context of "
                f"{self.max_context} tokens; shorten it",
                context=self.max_context,
            )

    def prompt_ids(self, prompt: Prompt) -> list[int]:
        """Return the token ids of a prompt that will be continued.

        Text gets the model's prefix, such as BOS; ids are used as they are; a rendered chat gives its `chat_ids`.
        Raises RequestError for invalid ids, and like `check_text_length`.
        """
        ids = self.text_ids(prompt)
        if not isinstance(prompt, str):
            return ids
        suffix = list(self.tokenizer.special.suffix)  # such as EOS, which a prompt to continue must not have
        return ids[: -len(suffix)] if suffix and ids[-len(suffix) :] == suffix else ids

    def text_ids(self, text: Prompt) -> list[int]:
        """Return the token ids of a complete text, with the model's prefix and suffix. Raises like `prompt_ids`."""
        if isinstance(text, RenderedPrompt):
            return self.chat_ids(text)
        if isinstance(text, PromptIds):
            return text
        if not isinstance(text, str):
            return parse_token_ids("the prompt", text)
        self.check_text_length(text)
        return self.tokenizer.encode(text)

    def embed_ids(self, text: Prompt, prompt_name: str | None = None, *, truncate: bool = False) -> list[int]:
        """Return the token ids of a text to embed, with one of the prompts of the model's folder in front.

        prompt_name  name of that prompt; None: the folder's default prompt; "": none. Must be None for token ids
        truncate     keep at most the folder's max_seq_length and the context: the first ids and the model's suffix

        Raises like `prompt_ids`, and RequestError for an unknown name or one with ids.
        """
        if not isinstance(text, str):
            if prompt_name is not None:
                raise RequestError(
                    f"prompt_name is {safe_repr(prompt_name)}: a prompt can precede a text only, not token ids"
                )
            ids = self.text_ids(text)
        else:
            prompts = self._read_prompts()
            text = prompts.find_prompt(prompt_name) + text
            ids = self.text_ids(text.lower() if prompts.is_lowercased else text)
        if not truncate:
            return ids
        context = self.max_context
        max_tokens = min(self._read_prompts().max_seq_length or context, context)
        return truncate_ids(ids, max_tokens, self.tokenizer.special.suffix)

    def _read_prompts(self) -> Prompts:
        """Return the embedding settings of the model's folder. Raises ModelFileError for damaged files."""
        if self._prompts is None:
            self._prompts = read_prompts(self.loaded_engine.path)
        return self._prompts

    def render(self, messages: Sequence[Message]) -> RenderedPrompt:
        """Apply the chat template to messages, up to the beginning of the answer.

        The result separates the template's own text from content, which never becomes a control token.
        """
        return self.render_taken(self.take_images(with_known_roles(messages)))

    def render_taken(self, taken: TakenImages) -> RenderedPrompt:
        """Render messages as `render` does, from which `take_images` has taken the pictures."""
        rendered = self.template.render(taken.messages, add_generation_prompt=True)
        return self.expand_images(rendered, taken.pictures)

    def take_images(self, messages: Any, tenant: str = "", is_cancelled: IsCancelled | None = None) -> TakenImages:
        """Return messages without the data of their pictures, and the pictures as the model reads them.

        tenant         whose turn they take where a child process decodes them
        is_cancelled   polled between pictures; reading stops if it returns true

        Raises RequestError for a picture that cannot be read, or a model without vision; ContextOverflow for more
        pictures than the context holds.
        """
        if self.image_reader is not None:
            return self.image_reader.take_images(messages, tenant, is_cancelled)
        if has_pictures(messages):
            raise RequestError(f"image: {self.config.name} does not see. {self.describe_towers()}")
        return TakenImages(messages, [])

    def expand_images(self, rendered: RenderedPrompt, pictures: "Sequence[ProcessedImage]") -> RenderedPrompt:
        """Return a rendered chat with the rows of its pictures. Raises RequestError if the template has dropped one."""
        return rendered if self.image_reader is None else self.image_reader.expand(rendered, pictures)

    def describe_towers(self) -> str:
        """Return the remedy for a model without a vision tower: a file beside it that may hold its tower."""
        if self.vision_remedy:
            return self.vision_remedy
        if file := find_mmproj(self.path, self.config):
            return f"Set the option mmproj to {file}, which lies beside it."
        return "Load a model that does; if its vision tower is in a file of its own, name that with the option mmproj."

    def chat_ids(self, rendered: RenderedPrompt) -> list[int]:
        """Return the token ids of a rendered chat. BOS is added only if the template has written it.

        Raises like `check_text_length`, and RequestError for a value that `render` did not return.
        """
        if not isinstance(rendered, RenderedPrompt):
            raise RequestError(
                f"a rendered chat is {safe_repr(rendered)}: it must be a result of render(). Encode raw text with"
                " tokenizer.encode"
            )
        self.check_text_length(rendered.text)
        ids: list[int]
        if rendered.images:
            assert self.image_reader is not None
            ids = self.image_reader.encode(rendered)
        else:
            ids = self.tokenizer.encode_prompt(rendered)
        if not ids:
            raise RequestError(
                f"{self.tokenizer.template_label} renders no tokens for these messages: use another chat template"
            )
        return ids
