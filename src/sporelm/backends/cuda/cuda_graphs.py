"""The capture of CUDA graphs; `backends/torch/captured_graphs.py` has the programs that replay them."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from sporelm.backends.protocol import Handle
from sporelm.backends.torch.captured_graphs import Outputs


class CudaGraphDevice:
    """CUDA's functions, with one memory pool for all graphs."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, work: Callable[[], Outputs]) -> tuple[Any, Outputs]:
        graph = torch.cuda.CUDAGraph()
        # Other threads go on with their copies meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            outputs = work()
        return graph, outputs

    def update(self, graph: Any, arrays: Mapping[str, Handle]) -> None:
        """Do nothing: no launch takes a number from the host."""
