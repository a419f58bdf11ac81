"""Recordings: every step of an engine with its results, as lines of JSON, so that the run can be replayed.

The first line holds the model and the limits; then come, in the order in which they happened:

    {"add": request, "prompt": [...], "ends": [...], "sampling": {...}, "constrained": bool}
    {"step": Step.to_json(), "best": [argmax of each row], "logits": [checksum of each row], "s": seconds}
    {"said": [[tokens], ...]}           sampled from the step before, for each sequence with outputs
    {"embed": Step.to_json(), "hidden": [checksum of each row], "s": seconds}
    {"drop": request}
    {"imported": [pages]}               filled from a file, which a recording does not hold
    {"full": bytes}                     the end: the recording has reached its limit

A file that ends in the middle of a line is good up to there.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sporelm.engine.constraint import Constraint
from sporelm.engine.model_output import ModelOutput
from sporelm.engine.overwrite_check import check_replaceable_file
from sporelm.engine.sampling import Sampler, SamplerOutput, Sampling
from sporelm.engine.step import Step
from sporelm.errors import RequestError

if TYPE_CHECKING:
    from sporelm.engine.engine import Engine
    from sporelm.engine.ranks.worker_group import AnyWorker

MARK = "sporelm recording"
VERSION = 2
READABLE = (1, 2)  # 1 had no recurrent states
BEGINNING = f'{{"{MARK}": '
MAX_BYTES = 2 << 30
BUFFER = 1 << 16  # bytes that may be lost when the process is killed


class RecordingFile:
    """A recording that is written. A failure to write ends the recording, and nothing else."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        """Begin a recording, in place of an earlier one. Raises RequestError if another file is at the path, or if it
        cannot be written."""
        self.path, self.max_bytes = path, max_bytes
        self.failure: str | None = None  # why the recording ended early
        self.has_failed = False  # whether that was because it could not be written
        self.nbytes = 0
        try:
            check_replaceable_file(path, BEGINNING, "recording")
            self._file: IO[str] = os.fdopen(_create_private_file(path), "w", BUFFER, "ascii", newline="\n")
        except OSError as reason:
            raise RequestError(f"{path} cannot be written: {reason.strerror or reason}") from None

    def follow(self, engine: "Engine", worker: "AnyWorker", about: Mapping[str, Any]) -> None:
        """Record this engine from now on; it must not have any request yet."""
        self.line({MARK: VERSION, **about})
        worker.recorder = self
        engine.overlap = None  # one step after the other, so that each line has its results
        engine.sampler = RecordedSampler(self)

    def line(self, values: Mapping[str, Any]) -> None:
        """Append a line; none once the recording has ended."""
        if self.failure is not None or self._file.closed:
            return
        text = json.dumps(values, separators=(",", ":")) if self.nbytes else json.dumps(values)
        try:
            if self.nbytes + len(text) > self.max_bytes:
                self._file.write(f'{{"full":{self.nbytes}}}\n')
                self.failure = f"it has {self.nbytes} bytes, as many as it may have"
                return
            self._file.write(f"{text}\n")
        except OSError as reason:
            self.failure, self.has_failed = str(reason.strerror or reason), True
        self.nbytes += len(text) + 1

    def close(self) -> None:
        """Write the buffer; remove an empty file. Closing again does nothing."""
        if self._file.closed:
            return
        try:
            self._file.close()
            if not self.nbytes:
                self.path.unlink(missing_ok=True)
        except OSError as reason:
            self.failure, self.has_failed = self.failure or str(reason.strerror or reason), True

    # ---- called by the worker

    def record_step(self, step: Step, output: ModelOutput, seconds: float) -> None:
        """Write a step with its output."""
        results = {"best": output.argmax.tolist(), "logits": checksums(output.logits), "s": round(seconds, 6)}
        self.line({"step": step.to_json(), **results})

    def record_embed(self, step: Step, hidden: NDArray[np.float32], seconds: float) -> None:
        """Write a step with its hidden states."""
        self.line({"embed": step.to_json(), "hidden": checksums(hidden), "s": round(seconds, 6)})

    def record_import(self, pages: Sequence[int]) -> None:
        """Note that pages were filled from a file."""
        self.line({"imported": list(pages)})


class RecordedSampler(Sampler):
    """A sampler whose results are recorded."""

    def __init__(self, file: RecordingFile) -> None:
        super().__init__()
        self.file = file

    def needs_request(self, sampling: Sampling, constraint: Constraint | None) -> bool:
        """Return True: every request is recorded."""
        return True

    def add(
        self,
        request: int,
        sampling: Sampling,
        prompt: Sequence[int],
        stop_ids: Sequence[int],
        vocab: int,
        constraint: Constraint | None = None,
    ) -> None:
        super().add(request, sampling, prompt, stop_ids, vocab, constraint)
        values = {"prompt": list(prompt), "ends": list(stop_ids), "sampling": sampling_to_json(sampling)}
        self.file.line({"add": request, **values, "constrained": constraint is not None})

    def drop(self, request: int) -> None:
        super().drop(request)
        self.file.line({"drop": request})

    def sample(self, model_output: ModelOutput, step: Step) -> SamplerOutput:
        output = super().sample(model_output, step)
        self.file.line({"said": output.tokens})
        return output


def checksums(rows: NDArray[np.float32]) -> list[int]:
    """Return a number for each row [rows, width] that changes with any bit: the sum and the exclusive or of its words.

    A checksum against mistakes, not against forgery: a hash would take longer than the sampling.
    """
    words = rows.view(np.uint32)
    sums = words.sum(axis=1, dtype=np.uint64).tolist()
    return [
        total ^ (mixed << 32) for total, mixed in zip(sums, np.bitwise_xor.reduce(words, axis=1).tolist(), strict=True)
    ]


def sampling_to_json(sampling: Sampling) -> dict[str, Any]:
    """Return the values that differ from the defaults, as JSON values."""
    values: dict[str, Any] = {}
    for each in fields(sampling):
        value = getattr(sampling, each.name)
        if value != getattr(_DEFAULTS, each.name):
            is_set = isinstance(value, frozenset)
            values[each.name] = sorted(value) if is_set else dict(value) if isinstance(value, Mapping) else value
    return values


def sampling_from_json(values: Mapping[str, Any]) -> Sampling:
    """Return the options that `sampling_to_json` wrote. Raises RequestError for unknown names."""
    options: dict[str, Any] = {}
    for name, value in values.items():
        default = getattr(_DEFAULTS, name, None)
        if name not in {each.name for each in fields(_DEFAULTS)}:
            raise RequestError(f"no sampling value {name!r:.60}: the recording is of another version")
        if isinstance(default, frozenset):
            value = frozenset(value)
        elif isinstance(default, Mapping):
            value = {int(token): bias for token, bias in value.items()}
        options[name] = value
    return Sampling(**options)


_DEFAULTS = Sampling()


def _create_private_file(path: Path) -> int:
    """Create an empty file that only its owner can read, also where another file was readable: it will hold prompts."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.chmod(path, 0o600)
    except OSError:
        os.close(file)
        raise
    return file
