"""Roofline limits of a machine, from its measured read bandwidth and peak multiplication rate."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from sporelm.backends.dot_rates import dot_rate_of
from sporelm.bench.bench_rows import SpeedLimit
from sporelm.bench.driver import BenchCase
from sporelm.ops.paged_attention import PAGE, page_shape
from sporelm.quant import F32, FOLDER_FORMATS, FORMATS, QuantFormat

if TYPE_CHECKING:
    from sporelm.models.config import ModelConfig
    from sporelm.models.params import Param

TABLES = ("embedding.weight", "positions.weight", "layer_embedding.weight")


@dataclass(frozen=True)
class Workload:
    """The work of a model. `weight_bytes` counts the bytes that a step may read, including the output matrix."""

    weight_bytes: int
    kv_bytes: float  # keys and values of one position, in the layers that see all
    matrix_values: int  # numbers in the layers' matrices that a token is multiplied with, without embedding and output
    output_values: int  # numbers in the output matrix: multiplied for the last row of a prompt only
    integer: bool  # whether the products are integer dot products
    window: int = 0  # positions that the other layers see
    window_bytes: float = 0  # keys and values of one position, in those layers
    expert_bytes: int = 0  # the part of `weight_bytes` in expert matrices
    expert_share: float = 1.0  # share of the experts that one token uses
    state_bytes: int = 0  # of one sequence's recurrent state, which a step reads and writes
    form: type[QuantFormat] = F32  # of most weights; the rate of integer products may depend on it

    def read_bytes(self, batch: int) -> float:
        """Return the weight bytes that a decode step of `batch` tokens reads, if each token selects experts evenly.

        A share of (1 - expert_share) ** batch of the experts is then unused.
        """
        return self.weight_bytes - self.expert_bytes * (1 - self.expert_share) ** batch

    def limit(self, case: BenchCase, machine: Mapping[str, float]) -> SpeedLimit:
        """The fastest that a case can be.

        `machine` holds stream_bytes_s (bytes per second) and int8_dot_ops_s, f32_ops_s (a multiplication and an
        addition count as two), and what `dot_rate_of` looks for. A decode step reads every weight once (only the
        selected experts) and the keys and values of each sequence, and reads and writes its recurrent state. A prompt
        multiplies each token with every matrix (only the selected experts). The products inside attention are not
        counted.
        """
        if case.prompt:
            prompts = BenchCase(case.prompt, decode=False)
            tokens = replace(case, prompt=0, depth=case.prompt)
            new = case.batch * case.tokens
            first = case.batch * case.prompt / self.limit(prompts, machine).value
            return SpeedLimit("both", new / (first + new / self.limit(tokens, machine).value))
        if case.decode:
            held = case.depth + case.tokens / 2  # on average over the tokens decoded
            kv_bytes = held * self.kv_bytes + min(held, self.window) * self.window_bytes
            step_bytes = self.read_bytes(case.batch) + case.batch * (kv_bytes + 2 * self.state_bytes)
            return SpeedLimit("stream", case.batch * machine["stream_bytes_s"] / step_bytes)
        operations = 2 * (case.tokens * self.matrix_values + self.output_values)
        return SpeedLimit("compute", case.tokens * self.peak_rate(machine) / operations)

    def peak_rate(self, machine: Mapping[str, float]) -> float:
        """Return the operations a second of products with the model's weights."""
        return dot_rate_of(machine, self.form) if self.integer else machine["f32_ops_s"]


def compute_workload(
    config: "ModelConfig", weight_bytes: int, kv_value_bytes: float, expert_bytes: int = 0
) -> Workload:
    """The work of a model. Bytes are those of all packed weights, of one number in the cache, and, among the weights'
    bytes, those of the experts."""
    from sporelm.models import build
    from sporelm.models.blocks import Layer, State
    from sporelm.models.blocks.block_memory import Latent, list_memories

    model = build(config)
    # By layer, because some layers read the cache of others.
    read = [list_memories(layer.memory()) if isinstance(layer, Layer) else () for layer in model.layers]
    states = [shape for own in read for each in own if isinstance(each, State) for shape in each.shapes]
    # Per position in each layer. Rows with a maximum number per query count like those in a window.
    pages = [[each for each in own if not isinstance(each, State)] for own in read]
    kept = [sum(prod(page_shape(each.position_shape)) // PAGE for each in own) for own in pages]
    windowed = [layer for layer in range(config.layers) if config.window_of(layer) is not None]
    few = [each for own in pages for each in own if isinstance(each, Latent) and each.topk]
    window_values = sum(kept[layer] for layer in windowed) + sum(each.width for each in few)
    main = (FORMATS | FOLDER_FORMATS).get(config.dtype, F32)
    sizes = {param.name: prod(param.shape) for param in model.params()}
    output = sizes.get("output.weight", sizes["embedding.weight"])
    # Of tables a step reads one row a token; an embedding may be the output matrix too.
    tables = sum(sizes.get(name, 0) for name in TABLES) - (output if config.tie_embeddings else 0)
    read_bytes = weight_bytes - tables * main.nbytes // main.values
    passes = model.passes
    layer_bytes = read_bytes - output * main.nbytes // main.values
    expert_share = config.experts.used / config.experts.count if config.experts else 1.0
    return Workload(
        weight_bytes=read_bytes + (passes - 1) * layer_bytes,
        kv_bytes=(sum(kept) - window_values) * kv_value_bytes * passes,
        window=config.window or max((each.topk for each in few), default=0),
        window_bytes=window_values * kv_value_bytes * passes,
        matrix_values=passes * sum(count_multiplied_values(param, expert_share) for param in model.params()),
        output_values=output,
        integer=main.activation != "float",
        expert_bytes=expert_bytes,
        expert_share=expert_share,
        state_bytes=4 * sum(map(prod, states)),
        form=main,
    )


def count_multiplied_values(param: "Param", expert_share: float) -> int:
    """Count the numbers of a layer's weight that a token is multiplied with."""
    if len(param.shape) < 2 or not param.name.startswith("layers."):
        return 0
    return round(prod(param.shape) * expert_share) if param.is_experts else prod(param.shape)
