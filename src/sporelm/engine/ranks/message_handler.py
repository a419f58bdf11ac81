"""Carries out messages on the worker of one rank."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sporelm.backends.protocol import SlotWriter
from sporelm.engine.lora_runtime import LoraMatrices, LoraRuntime
from sporelm.engine.model_output import ModelOutput
from sporelm.engine.ranks import messages
from sporelm.engine.ranks.messages import Arrays, Done, RankReady, Reply
from sporelm.engine.runner import NO_TOKENS
from sporelm.engine.sampling.candidates import top_k_ids
from sporelm.engine.worker import Worker
from sporelm.errors import BackendError


@dataclass(frozen=True)
class OpenedRank:
    """A rank that can run steps.

    ready   the answer to OpenRank
    abort   makes native waits for other ranks return
    close   frees everything
    """

    worker: Worker
    ready: RankReady
    abort: Callable[[], None]
    close: Callable[[], None]


Result = Reply | Callable[[], Reply]  # a function waits for a copy that has begun


class MessageHandler:
    """A worker, the outputs of its last step, and the LoRA adapters that it has, as messages name them."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._outputs: list[ModelOutput] = []  # of each micro-batch of the last step that has output rows
        self._hidden: NDArray[np.float32] | None = None  # of the last step, if it was one for them
        self._adapters: dict[int, dict[str, LoraMatrices]] = {}  # on the device, by number
        self._lora_runtimes: dict[int, LoraRuntime] = {}  # by the number of the set
        self._lora_number = 0  # of the set in use
        self._actions: dict[type, Callable[[Any], Result]] = {
            messages.RunStep: self._run,
            messages.EmbedStep: self._embed,
            messages.FetchLogits: self._fetch_logits,
            messages.FetchCandidates: self._fetch_candidates,
            messages.ExportPages: self._export,
            messages.ImportPages: self._import_pages,
            messages.ImportStates: self._import_states,
            messages.FetchHidden: self._fetch_hidden,
            messages.PutAdapter: self._put_adapter,
            messages.DropAdapters: self._drop_adapters,
            messages.BuildLora: self._build_lora,
            messages.UseLora: self._use_lora,
            messages.DiscardLora: self._discard_lora,
            messages.UseImages: self._use_images,
            messages.Prepare: self._prepare,
        }

    def handle(self, request: messages.Request) -> Result:
        """Carry out a request other than OpenRank and Close. Raises SporeError."""
        action = self._actions.get(type(request))
        if action is None:
            raise BackendError(f"ranks: {type(request).__name__} is out of order")
        return action(request)

    def argmax(self) -> NDArray[np.int32]:
        """Return the argmax of each output row of the last step, valid until the next one."""
        return np.concatenate([NO_TOKENS, *(output.argmax for output in self._outputs)])

    def fetch_logits(self, rows: list[int] | None) -> NDArray[np.float32]:
        """Return rows of the last step's logits, of this rank's columns; None: all rows, which the next step may
        overwrite."""
        if not self._outputs:
            raise BackendError("ranks: no step has run whose logits could be fetched")
        if len(self._outputs) == 1:
            return self._outputs[0].logits if rows is None else self._outputs[0].rows(rows)
        whole = np.concatenate([output.logits for output in self._outputs])
        return whole if rows is None else whole[rows]

    def find_candidates(self, count: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return the columns and the values of the `count` greatest logits of each row."""
        logits = self.fetch_logits(None)
        columns = top_k_ids(logits, min(max(1, count), logits.shape[1]))
        return columns.astype(np.int32), np.take_along_axis(logits, columns, axis=1)

    def _run(self, request: messages.RunStep) -> Result:
        self._hidden = None
        if not request.batch_index:
            self._outputs.clear()
        elif request.keeps_output and self._outputs:
            before = self._outputs.pop()  # the micro-batch overwrites it
            self._outputs.append(ModelOutput(np.array(before.argmax), np.array(before.logits)))
        output, num_outputs = self.worker.run(request.step), request.step.num_outputs
        if num_outputs and (request.keeps_output or not request.batch_index):  # a program computes one row at least
            self._outputs.append(output)
        return Arrays([np.array(output.argmax[:num_outputs])]) if request.wants_tokens else Done()

    def _embed(self, request: messages.EmbedStep) -> Result:
        hidden = self.worker.embed(request.step)
        if not request.wants_rows:
            return Done()
        self._hidden = hidden
        return Arrays([np.array(hidden.shape, np.int64)])

    def _fetch_hidden(self, request: messages.FetchHidden) -> Result:
        if self._hidden is None:
            raise BackendError("ranks: no step has run whose hidden states could be fetched")
        return Arrays([np.array(self._hidden[max(0, request.start) : request.stop], np.float32)])

    def _fetch_logits(self, request: messages.FetchLogits) -> Result:
        return Arrays([np.array(self.fetch_logits(request.rows), np.float32)])

    def _fetch_candidates(self, request: messages.FetchCandidates) -> Result:
        return Arrays(list(self.find_candidates(request.count)))

    def _export(self, request: messages.ExportPages) -> Result:
        finish = self.worker.start_export(request.pages, request.states)
        if not self.worker.device.traits.is_async:
            layers, states = finish()
            return Arrays([*layers, *states])
        return lambda: Arrays([array for arrays in finish() for array in arrays])

    def _import_pages(self, request: messages.ImportPages) -> Result:
        self.worker.import_pages(request.pages, request.layers)
        return Done()

    def _import_states(self, request: messages.ImportStates) -> Result:
        self.worker.import_states(request.states, request.arrays)
        return Done()

    def _put_adapter(self, request: messages.PutAdapter) -> Result:
        tensors: dict[int, Any] = {}
        adapter = self._adapters.setdefault(request.adapter, {})
        for name, pair in request.matrices.items():
            for each in pair:
                if id(each) not in tensors:
                    tensors[id(each)] = self._upload(each)
            adapter[name] = LoraMatrices(*(tensors[id(each)] for each in pair))
        return Done()

    def _drop_adapters(self, request: messages.DropAdapters) -> Result:
        for number in request.adapters:
            self._adapters.pop(number, None)
        return Done()

    def _build_lora(self, request: messages.BuildLora) -> Result:
        if not self._adapters.keys() >= set(request.adapters.values()):
            raise BackendError("ranks: BuildLora came before PutAdapter")
        adapters = {adapter_id: self._adapters[number] for adapter_id, number in request.adapters.items()}
        self._lora_runtimes[request.number] = self.worker.build_lora_runtime(adapters)
        return Done()

    def _upload(self, matrix: NDArray[np.float32]) -> Any:
        return matrix if isinstance(self.worker.device, SlotWriter) else self.worker.device.tensor(np.array(matrix))

    def _use_lora(self, request: messages.UseLora) -> Result:
        if request.number and request.number not in self._lora_runtimes:
            raise BackendError("ranks: UseLora came before BuildLora")
        self.worker.set_lora_runtime(self._lora_runtimes[request.number] if request.number else None)
        if self._lora_number != request.number:
            self._lora_runtimes.pop(self._lora_number, None)  # which the worker has freed
        self._lora_number = request.number
        return Done()

    def _discard_lora(self, request: messages.DiscardLora) -> Result:
        runtime = self._lora_runtimes.pop(request.number, None)
        if runtime is not None:
            self.worker.discard_lora_runtime(runtime)
        return Done()

    def _use_images(self, request: messages.UseImages) -> Result:
        use_images(self.worker, request.columns)
        return Done()

    def _prepare(self, request: messages.Prepare) -> Result:
        self.worker.prepare()
        return Done()


def use_images(worker: Worker, columns: int) -> None:
    """Take image rows of `columns` values in steps from now on, and compile the programs of such steps."""
    worker.runner.image_columns = columns
    worker.runner.prepare_images()
