"""A model that is open: its parts, its adapters, the files in which it writes down what it does."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from sporelm.api.adapters import Adapters, LoraAdapter, as_adapters
from sporelm.api.completion import Timings
from sporelm.api.embedding import cut
from sporelm.api.loading import Opened, Options, open_engine
from sporelm.api.watching import Watching
from sporelm.backends.backend import Backend, Progress
from sporelm.engine import Engine, Metrics
from sporelm.engine.reading import EncoderEngine
from sporelm.engine.request import token_ids
from sporelm.errors import ContextOverflow, RequestError, shown
from sporelm.text import RenderedPrompt, Tokenizer
from sporelm.text.messages import with_known_roles
from sporelm.weights.config import ModelConfig
from sporelm.weights.prompts import Prompts, prompts_of

if TYPE_CHECKING:
    from sporelm.api.isolation import Isolation
    from sporelm.text import ChatTemplate

READABLE = 1 << 20  # characters
Prompt = str | Sequence[int] | RenderedPrompt
Message = Mapping[str, Any]


class OpenModel:
    """What `LLM` has open, from its options to `close`, and what it makes of texts before they are computed."""

    def __init__(
        self,
        options: Options,
        progress: Progress | None,
        trace: str | Path | None,
        record: str | Path | None,
        adapters: Sequence[str | Path | LoraAdapter],
    ) -> None:
        """Load it. Raises SporeError; then nothing stays open."""
        wanted = as_adapters(adapters)
        self.watching = Watching(trace, record)
        try:
            self._opened: Opened | None = open_engine(options, progress)
        except BaseException:
            self.watching.close()
            raise
        self.config: ModelConfig = self._opened.config
        self.tokenizer: Tokenizer = self._opened.tokenizer
        self.max_context = self._opened.engine.limits.max_context
        self.model_bytes, self.expert_bytes = self._opened.model_bytes, self._opened.expert_bytes
        self.threads = self._opened.threads
        self.kv = self._opened.kv
        self.notes = self._opened.notes
        self.adapters = Adapters(self)
        self._metrics = self._opened.engine.metrics
        self._templates: dict[str, ChatTemplate] = {}  # by source, read when first needed: not every use is a chat
        self.isolation: Isolation | None = None  # None: templates and grammars are worked on by who asks
        self._prompts: Prompts | None = None  # likewise
        try:
            self.watching.start(self._opened)
            self.adapters.load(wanted)
        except BaseException:
            self.close()
            raise

    @property
    def opened(self) -> Opened:
        """The parts. Raises RequestError after `close`."""
        if self._opened is None:
            raise RequestError("this model is closed: open it again")
        return self._opened

    @property
    def is_open(self) -> bool:
        """Whether `close` has not been called."""
        return self._opened is not None

    @property
    def engine(self) -> Engine:
        return self.opened.engine

    @property
    def backend(self) -> Backend:
        return self.opened.backend

    @property
    def metrics(self) -> Metrics:
        """Counters and histograms of what was asked and done so far; any thread may read them, after `close` too."""
        return self._metrics

    @property
    def timings(self) -> Timings:
        """What loading and compiling took so far, in seconds."""
        return Timings(self.opened.load_s, self.opened.compile_s)

    @property
    def generates(self) -> bool:
        """Whether it continues texts, as all do but encoders, and files of rerankers or of models without a head."""
        return not isinstance(self.engine, EncoderEngine) and not self.config.labels and not self.config.alone

    def check_generates(self) -> None:
        """Raise RequestError, which says what works, for a model that continues no text."""
        if isinstance(self.engine, EncoderEngine):
            raise self.engine.worker.refusal()
        if self.config.labels:
            raise RequestError(f"{self.config.name} is a reranker, which continues no text; ask it to rerank")
        if self.config.alone:
            what = "comes without the head that scores tokens"
            raise RequestError(f"{self.config.name} {what}: it continues no text; it makes vectors: ask to embed")

    @property
    def template(self) -> "ChatTemplate":
        """The model's chat template. Raises RequestError if it has none, or continues no text."""
        return self.chat_template()

    def chat_template(self, *, tools: bool = False) -> "ChatTemplate":
        """The model's chat template; with `tools`, the one for tools if the model has one. Raises as `template`."""
        from sporelm.text import ChatTemplate

        self.check_generates()
        found = ChatTemplate.of(self.tokenizer, tools=tools)
        if self.isolation is None:
            return found
        if found.source not in self._templates:
            self._templates[found.source] = found.within(self.isolation.renderer, self.isolation.render_seconds)
        return self._templates[found.source]

    def load_adapter(self, path: str | Path, name: str | None = None, scale: float = 1.0) -> str:
        """Load an adapter (LoRA) for requests that name it, `SamplingParams(adapter=NAME)`; its name.

        path   a folder that PEFT wrote, or a .gguf file of llama.cpp
        name   None: as the folder or the file
        scale  multiplies what the adapter adds

        Raises RequestError for a name that is taken or one adapter too many; ModelNotFound, ModelFileError,
        UnsupportedModel and MemoryShortage for what cannot be read. What runs is not disturbed.
        """
        return self.adapters.load([LoraAdapter(path, name, scale)])[0]

    def unload_adapter(self, name: str) -> None:
        """Forget an adapter. Raises RequestError if there is none of that name, or while requests use it."""
        self.adapters.unload(name)

    def close(self) -> None:
        """Free the model's memory and threads. Closing again does nothing."""
        if self._opened is not None:
            self.watching.close()
            self._opened.close()
            self._opened, self.adapters = None, Adapters(self)

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

    def check_readable(self, text: str) -> None:
        """Raise ContextOverflow for a text that is too long to be read into tokens first, which would take seconds: of
        more characters than READABLE, and than tokens of a context can have."""
        if len(text) <= READABLE:
            return
        longest = max(len(self.tokenizer.token_bytes(token)) for token in range(self.tokenizer.vocab_size))
        most = max(READABLE, self.max_context * longest)
        if len(text) > most:
            raise ContextOverflow(
                f"the text has {len(text)} characters: of more than {most} none fits in a context of "
                f"{self.max_context} tokens; shorten it",
                context=self.max_context,
            )

    def prompt_ids(self, prompt: Prompt) -> list[int]:
        """The ids of a prompt: text gets what the model wants before it, ids are taken as they are, of a rendered chat
        those of `chat_ids`.

        Raises RequestError for wrong ids, and as `check_readable`.
        """
        ids = self.text_ids(prompt)
        if not isinstance(prompt, str):
            return ids
        end = list(self.tokenizer.special.suffix)  # an end of text, which a prompt to be continued must not have
        return ids[: -len(end)] if end and ids[-len(end) :] == end else ids

    def text_ids(self, text: Prompt) -> list[int]:
        """The ids of a text that is whole, with what the model wants before it and after it; ids are taken as they are.

        Raises as `prompt_ids`.
        """
        if isinstance(text, RenderedPrompt):
            return self.chat_ids(text)
        if not isinstance(text, str):
            return token_ids("the prompt", text)
        self.check_readable(text)
        return self.tokenizer.encode(text)

    def embed_ids(self, text: Prompt, prompt_name: str | None = None, *, truncate: bool = False) -> list[int]:
        """The ids of a text to be embedded, with one of the prompts of the model's folder in front: that of this
        name, for None the one that its makers put before every text, for "" none; ids are taken as they are.

        With `truncate` no more than the folder's max_seq_length, and than the context: the first ones, and behind them
        what stands behind every text.

        Raises as `prompt_ids`, and RequestError for an unknown name or one with ids.
        """
        if not isinstance(text, str):
            if prompt_name is not None:
                raise RequestError(f"prompt_name is {shown(prompt_name)}: prompts are put before texts, not before ids")
            ids = self.text_ids(text)
        else:
            prompts = self._folder_prompts()
            text = prompts.named(prompt_name) + text
            ids = self.text_ids(text.lower() if prompts.lower else text)
        if not truncate:
            return ids
        context, suffix = self.engine.limits.max_context, self.tokenizer.special.suffix
        return cut(ids, min(self._folder_prompts().longest or context, context), suffix)

    def _folder_prompts(self) -> Prompts:
        """What the model's folder says of texts to be embedded. Raises ModelFileError for damaged files."""
        if self._prompts is None:
            self._prompts = prompts_of(self.opened.path)
        return self._prompts

    def render(self, messages: Sequence[Message]) -> RenderedPrompt:
        """The messages as the model wants to read them, up to where its answer begins: a text in spans, some of the
        chat template's own, the others content, which never becomes a control token."""
        return self.template.render(with_known_roles(messages), add_generation_prompt=True)

    def chat_ids(self, rendered: RenderedPrompt) -> list[int]:
        """The ids of a rendered chat. The template has written BOS itself, if it belongs there.

        Raises as `check_readable`, and RequestError for what `render` did not give.
        """
        if not isinstance(rendered, RenderedPrompt):
            raise RequestError(
                f"a rendered chat is {shown(rendered)}: it must be what render() gives. Encode raw text with"
                " tokenizer.encode"
            )
        self.check_readable(rendered.text)
        ids = self.tokenizer.encode_prompt(rendered)
        if not ids:
            raise RequestError(f"{self.tokenizer.template_label} renders nothing for these messages; give another one")
        return ids
