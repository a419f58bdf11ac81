"""A model on its way into memory: first what it needs, then its weights and its worker."""

from collections.abc import Sequence

from sporelm.backends.backend import Backend, Progress
from sporelm.engine import Limits, LoadedModel, Worker
from sporelm.engine.capacity import bytes_per_page, bytes_per_state, step_bytes
from sporelm.errors import UnsupportedModel
from sporelm.models import Encoder, build
from sporelm.ops.cache import KV_TYPES
from sporelm.quant import F32 as F32_FORMAT
from sporelm.tensor.tensor import Tensor
from sporelm.weights.load import ModelSource, held_format, load_parameters, match_names
from sporelm.weights.names import Param


class Incoming:
    """A model whose files are open and whose weights are not read yet.

    kv          numbers of its cache; None: f32 for weights in f32, else f16
    dequantize  compute with the weights' values in float32
    """

    def __init__(self, source: ModelSource, backend: Backend, kv: str | None, *, dequantize: bool) -> None:
        self.source, self.backend, self.dequantize = source, backend, dequantize
        self.config = source.config
        self.model = build(source.config)
        self.params = self.model.params()
        self.kv = kv or ("f32" if dequantize or source.config.dtype == "F32" else "f16")
        sizes = packed_sizes(source, self.params, backend, dequantize=dequantize)
        self.nbytes = sum(sizes.values())
        self.expert_bytes = sum(nbytes for param, nbytes in sizes.items() if param.is_experts)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page in all caches together."""
        return bytes_per_page(self.model.memory(), self.backend, KV_TYPES[self.kv])

    @property
    def state_bytes(self) -> int:
        """Bytes of one recurrent state in all caches together; 0 of models that keep none."""
        return bytes_per_state(self.model.memory(), self.backend)

    def step_bytes(self, tokens: int) -> int:
        """About what the values of a step of so many tokens take."""
        return step_bytes(self.config, tokens)

    def weights(self, max_context: int, threads: int, progress: Progress | None) -> dict[str, Tensor]:
        """Its weights, and tables for so many positions. Raises ModelFileError, MemoryShortage."""
        weights = load_parameters(
            self.source, self.params, self.backend, progress, dequantize=self.dequantize, threads=threads
        )
        tables = self.model.tables(max_context)
        if isinstance(self.model, Encoder):
            tables |= self.model.learned_tables(weights, max_context)
            made = self.model.learned_weights(weights)
            weights |= {name: self.backend.pack(each) for name, each in made.items()}
        return weights | {name: self.backend.tensor(table) for name, table in tables.items()}

    def loaded(self, max_context: int, threads: int, progress: Progress | None) -> LoadedModel:
        """A decoder with its weights. Raises as `weights`, and UnsupportedModel for an encoder."""
        if isinstance(self.model, Encoder):
            raise UnsupportedModel(f"{self.config.name} is an encoder: it generates nothing")
        return LoadedModel(self.model, self.weights(max_context, threads, progress))

    def worker(self, loaded: LoadedModel, limits: Limits, progress: Progress | None, *, eager: bool) -> Worker:
        """A worker whose programs are made. Raises MemoryShortage."""
        worker = Worker(loaded, self.backend, limits=limits, kv=KV_TYPES[self.kv], eager=eager)
        try:
            worker.prepare(progress)
        except BaseException:
            worker.close()
            raise
        return worker


def packed_sizes(
    source: ModelSource, params: Sequence[Param], backend: Backend, *, dequantize: bool
) -> dict[Param, int]:
    """Bytes of each weight once it is packed."""
    names = match_names(source, params)
    sizes = {}
    for param in params:
        stored = F32_FORMAT if dequantize else held_format(source, names[param.name], param)
        sizes[param] = backend.packed_bytes(stored, param.shape)
    return sizes
