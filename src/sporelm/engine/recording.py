"""Recordings: every step of an engine with what came of it, as lines of JSON, so that the run can be replayed.

The first line says which model and which limits; then come, in the order in which they happened:

    {"add": request, "prompt": [...], "ends": [...], "sampling": {...}, "constrained": bool}
    {"step": Step.to_json(), "best": [argmax of each row], "logits": [checksum of each row], "s": seconds}
    {"said": [[tokens], ...]}           of the step before, for each part that wants logits
    {"embed": Step.to_json(), "hidden": [checksum of each row], "s": seconds}
    {"drop": request}
    {"imported": [pages]}               what was put there came from a file, which a recording does not hold
    {"full": bytes}                     nothing more was recorded

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
from sporelm.engine.overwrite_check import check_replaceable_file
from sporelm.engine.runner import ModelOutput
from sporelm.engine.sampling import Sampler, SamplerOutput, Sampling
from sporelm.engine.step import Step
from sporelm.errors import RequestError

if TYPE_CHECKING:
    from sporelm.engine.engine import Engine
    from sporelm.engine.worker import Worker

MARK = "sporelm recording"
VERSION = 2
READABLE = (1, 2)  # 1 knew of no recurrent states
BEGINNING = f'{{"{MARK}": '
MOST_BYTES = 2 << 30
BUFFER = 1 << 16  # bytes that may be lost when the process is killed


class RecordingFile:
    """The file that a recording grows in. A failure to write ends the recording, and nothing else."""

    def __init__(self, path: Path, most_bytes: int = MOST_BYTES) -> None:
        """Begin a recording, in place of an earlier one. Raises RequestError if something else is there, or if it
        cannot be written."""
        self.path, self.most_bytes = path, most_bytes
        self.failure: str | None = None  # why the recording ended early
        self.has_failed = False  # whether that was because it could not be written
        self.nbytes = 0
        try:
            check_replaceable_file(path, BEGINNING, "recording")
            self._file: IO[str] = os.fdopen(_for_owner(path), "w", BUFFER, "ascii", newline="\n")
        except OSError as reason:
            raise RequestError(f"{path} cannot be written: {reason.strerror or reason}") from None

    def follow(self, engine: "Engine", worker: "Worker", about: Mapping[str, Any]) -> None:
        """Record all that this engine does from now on; it must not have any request yet."""
        self.line({MARK: VERSION, **about})
        worker.recorder = self
        engine.sampler = RecordedSampler(self)

    def line(self, values: Mapping[str, Any]) -> None:
        """Append a line; none once the recording has ended."""
        if self.failure is not None or self._file.closed:
            return
        text = json.dumps(values, separators=(",", ":")) if self.nbytes else json.dumps(values)
        try:
            if self.nbytes + len(text) > self.most_bytes:
                self._file.write(f'{{"full":{self.nbytes}}}\n')
                self.failure = f"it has {self.nbytes} bytes, as many as it may have"
                return
            self._file.write(f"{text}\n")
        except OSError as reason:
            self.failure, self.has_failed = str(reason.strerror or reason), True
        self.nbytes += len(text) + 1

    def close(self) -> None:
        """Write what is left; of nothing there is no file. Closing again does nothing."""
        if self._file.closed:
            return
        try:
            self._file.close()
            if not self.nbytes:
                self.path.unlink(missing_ok=True)
        except OSError as reason:
            self.failure, self.has_failed = self.failure or str(reason.strerror or reason), True

    # ---- what the worker tells

    def ran(self, step: Step, scores: ModelOutput, seconds: float) -> None:
        """A step gave these scores."""
        found = {"best": scores.best.tolist(), "logits": checksums(scores.logits), "s": round(seconds, 6)}
        self.line({"step": step.to_json(), **found})

    def embedded(self, step: Step, hidden: NDArray[np.float32], seconds: float) -> None:
        """A step gave these rows."""
        self.line({"embed": step.to_json(), "hidden": checksums(hidden), "s": round(seconds, 6)})

    def imported(self, pages: Sequence[int]) -> None:
        """Pages were filled from elsewhere."""
        self.line({"imported": list(pages)})


class RecordedSampler(Sampler):
    """A sampler whose choices are recorded."""

    def __init__(self, file: RecordingFile) -> None:
        super().__init__()
        self.file = file

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
        given = {"prompt": list(prompt), "ends": list(stop_ids), "sampling": sampling_to_json(sampling)}
        self.file.line({"add": request, **given, "constrained": constraint is not None})

    def drop(self, request: int) -> None:
        super().drop(request)
        self.file.line({"drop": request})

    def pick(self, best: NDArray[np.int32], logits: NDArray[np.float32], step: Step) -> SamplerOutput:
        picked = super().pick(best, logits, step)
        self.file.line({"said": picked.tokens})
        return picked


def checksums(rows: NDArray[np.float32]) -> list[int]:
    """A number for each row [rows, width] that changes with any bit of it: the sum and the exclusive or of its words.

    A checksum against mistakes, not against forgery: a hash would take longer than the sampling.
    """
    words = rows.view(np.uint32)
    sums = words.sum(axis=1, dtype=np.uint64).tolist()
    return [
        total ^ (mixed << 32) for total, mixed in zip(sums, np.bitwise_xor.reduce(words, axis=1).tolist(), strict=True)
    ]


def sampling_to_json(sampling: Sampling) -> dict[str, Any]:
    """The values that are not the usual ones, as JSON knows them."""
    found: dict[str, Any] = {}
    for each in fields(sampling):
        value = getattr(sampling, each.name)
        if value != getattr(_USUAL, each.name):
            is_set = isinstance(value, frozenset)
            found[each.name] = sorted(value) if is_set else dict(value) if isinstance(value, Mapping) else value
    return found


def sampling_from_json(values: Mapping[str, Any]) -> Sampling:
    """What `sampling_to_json` gave. Raises RequestError for values that there are not."""
    given: dict[str, Any] = {}
    for name, value in values.items():
        usual = getattr(_USUAL, name, None)
        if name not in {each.name for each in fields(_USUAL)}:
            raise RequestError(f"no sampling value {name!r:.60}: the recording is of another version")
        if isinstance(usual, frozenset):
            value = frozenset(value)
        elif isinstance(usual, Mapping):
            value = {int(token): bias for token, bias in value.items()}
        given[name] = value
    return Sampling(**given)


_USUAL = Sampling()


def _for_owner(path: Path) -> int:
    """An empty file that only its owner can read, whoever could read what was there: it will hold what was asked."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.chmod(path, 0o600)
    except OSError:
        os.close(file)
        raise
    return file
