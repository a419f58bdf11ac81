"""What a machine allows at most, from its measured read bandwidth and its measured peak of multiplications."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from sporelm.bench.driver import Case
from sporelm.bench.rows import Limit
from sporelm.ops.attention import PAGE, page_shape
from sporelm.quant import F32, FOLDER_FORMATS, FORMATS

if TYPE_CHECKING:
    from sporelm.weights.config import ModelConfig
    from sporelm.weights.names import Param

TABLES = ("embedding.weight", "positions.weight", "layer_embedding.weight")


@dataclass(frozen=True)
class Work:
    """What a model asks of a machine. `weight_bytes` are those that a step may read, the output matrix included."""

    weight_bytes: int
    kv_bytes: float  # keys and values of one position, in the layers that see all
    matrix_values: int  # numbers in the layers' matrices that a token is multiplied with, without embedding and output
    output_values: int  # numbers in the output matrix: multiplied for the last row of a prompt only
    integer: bool  # whether the products are integer dot products
    window: int = 0  # positions that the other layers see
    window_bytes: float = 0  # keys and values of one position, in those layers
    expert_bytes: int = 0  # of `weight_bytes`, those of matrices of which a token chooses
    chosen: float = 1.0  # the share of the experts that one token chooses
    state_bytes: int = 0  # of one sequence's recurrent state, which a step reads and writes

    def read_bytes(self, batch: int) -> float:
        """Bytes of the weights that a decode step of so many tokens reads, each with experts of its own, chosen evenly:
        (1 - chosen) ** batch of the experts are then chosen by none."""
        return self.weight_bytes - self.expert_bytes * (1 - self.chosen) ** batch

    def limit(self, case: Case, machine: Mapping[str, float]) -> Limit:
        """The fastest that a case can be.

        `machine` holds stream_bytes_s (bytes per second) and int8_dot_ops_s, f32_ops_s (a multiplication and an
        addition count as two). A decode step reads once every weight, of experts those that a token chose, and each
        sequence's keys and values, and reads and writes its recurrent state; a prompt must multiply each of its tokens
        with every matrix, of the experts' with those chosen. Attention's own products are not counted.
        """
        if case.prompt:
            prompts, tokens = Case(case.prompt, decode=False), replace(case, prompt=0, depth=case.prompt)
            new = case.batch * case.tokens
            first = case.batch * case.prompt / self.limit(prompts, machine).value
            return Limit("both", new / (first + new / self.limit(tokens, machine).value))
        if case.decode:
            held = case.depth + case.tokens / 2  # on average over the tokens decoded
            kv_bytes = held * self.kv_bytes + min(held, self.window) * self.window_bytes
            step_bytes = self.read_bytes(case.batch) + case.batch * (kv_bytes + 2 * self.state_bytes)
            return Limit("stream", case.batch * machine["stream_bytes_s"] / step_bytes)
        operations = 2 * (case.tokens * self.matrix_values + self.output_values)
        peak = machine["int8_dot_ops_s" if self.integer else "f32_ops_s"]
        return Limit("compute", case.tokens * peak / operations)


def work_of(config: "ModelConfig", weight_bytes: int, kv_value_bytes: float, expert_bytes: int = 0) -> Work:
    """The work of a model. Bytes are those of all packed weights, of one number in the cache, and, among the weights'
    bytes, those of the experts."""
    from sporelm.models import build
    from sporelm.models.blocks import Layer, State
    from sporelm.models.blocks.memory import Latent, each_of

    model = build(config)
    # By layer, for some read what others keep.
    read = [each_of(layer.memory()) if isinstance(layer, Layer) else () for layer in model.layers]
    states = [shape for own in read for each in own if isinstance(each, State) for shape in each.shapes]
    # Of a position in each layer; rows of which a query reads a number at most are as those that a window holds.
    pages = [[each for each in own if not isinstance(each, State)] for own in read]
    kept = [sum(prod(page_shape(each.kept)) // PAGE for each in own) for own in pages]
    windowed = [layer for layer in range(config.layers) if config.window_of(layer) is not None]
    few = [each for own in pages for each in own if isinstance(each, Latent) and each.most]
    window_values = sum(kept[layer] for layer in windowed) + sum(each.width for each in few)
    main = (FORMATS | FOLDER_FORMATS).get(config.dtype, F32)
    sizes = {param.name: prod(param.shape) for param in model.params()}
    output = sizes.get("output.weight", sizes["embedding.weight"])
    # Of tables a step reads one row a token; an embedding may be the output matrix too.
    tables = sum(sizes.get(name, 0) for name in TABLES) - (output if config.tie_embeddings else 0)
    read_bytes = weight_bytes - tables * main.nbytes // main.values
    passes = model.passes
    layer_bytes = read_bytes - output * main.nbytes // main.values
    chosen = config.experts.used / config.experts.count if config.experts else 1.0
    return Work(
        weight_bytes=read_bytes + (passes - 1) * layer_bytes,
        kv_bytes=(sum(kept) - window_values) * kv_value_bytes * passes,
        window=config.window or max((each.most for each in few), default=0),
        window_bytes=window_values * kv_value_bytes * passes,
        matrix_values=passes * sum(multiplied(param, chosen) for param in model.params()),
        output_values=output,
        integer=main.activation != "float",
        expert_bytes=expert_bytes,
        chosen=chosen,
        state_bytes=4 * sum(map(prod, states)),
    )


def multiplied(param: "Param", chosen: float) -> int:
    """Numbers of a layer's weight that a token is multiplied with."""
    if len(param.shape) < 2 or not param.name.startswith("layers."):
        return 0
    return round(prod(param.shape) * chosen) if param.is_experts else prod(param.shape)
