"""The files in which an engine logs its steps, if `LLM` is asked to: a trace of op timings, and a recording."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from sporelm import __version__
from sporelm.api.user_paths import parse_path
from sporelm.backends.protocol import Ready
from sporelm.engine.encoder_engine import EncoderEngine
from sporelm.engine.recording import RecordingFile
from sporelm.engine.trace import Summary, Trace
from sporelm.engine.trace_file import TraceFile
from sporelm.errors import RequestError

if TYPE_CHECKING:
    from sporelm.api.engine_loader import LoadedEngine


class TraceAndRecord:
    """The trace and the recording of one loaded model."""

    def __init__(self, trace: str | Path | None, record: str | Path | None) -> None:
        """Create the files, before anything slow runs. Raises RequestError for an invalid or unwritable path."""
        if trace is not None and record is not None:
            trace_path = parse_path("trace", trace)
            if trace_path.resolve() == parse_path("record", record).resolve():
                raise RequestError(f"trace and record are both {trace_path}: give two different files")
        self.trace: Trace | None = None
        self.recording = RecordingFile(parse_path("record", record)) if record is not None else None
        self.file: TraceFile | None = None
        try:
            self.file = TraceFile(parse_path("trace", trace), {"sporelm": __version__}) if trace is not None else None
        except BaseException:
            self.close()
            raise

    def start(self, loaded: "LoadedEngine") -> None:
        """Start logging the steps of this engine. Raises RequestError for the recording of an encoder."""
        if self.recording is not None:
            if isinstance(loaded.engine, EncoderEngine):
                raise RequestError("the option record: an encoder's steps cannot be replayed. Leave it out.")
            self.recording.follow(loaded.decoder_engine, loaded.decoder_worker, describe_engine(loaded))
        if self.file is not None:
            self.trace = loaded.engine.observer = Trace(self.file, loaded.worker, loaded.draft)

    @property
    def summary(self) -> Summary | None:
        """Sums over the traced steps; None without a trace."""
        return self.trace.summary if self.trace else None

    def notes(self) -> list[str]:
        """Return messages for the user about the closed files: failures, and events that were dropped."""
        notes = []
        if self.file is not None:
            if self.file.failure is not None:
                notes.append(f"the trace {self.file.path} could not be written: {self.file.failure}")
            elif self.file.left_out:
                limit = f"{self.file.count} events, the maximum"
                notes.append(f"the trace {self.file.path} has {limit}; {self.file.left_out} later ones are dropped")
        if self.recording is not None and self.recording.failure is not None:
            notes.append(f"the recording {self.recording.path} ends early: {self.recording.failure}")
        return notes

    @property
    def has_failed(self) -> bool:
        """Whether a file could not be written; reaching its size limit is not a failure."""
        is_trace_lost = self.file is not None and self.file.failure is not None
        return is_trace_lost or (self.recording is not None and self.recording.has_failed)

    def close(self) -> None:
        """Finish the files. The engine must be idle."""
        if self.trace is not None:
            self.trace.close()
        elif self.file is not None:
            self.file.remove()  # nothing was traced
        if self.recording is not None:
            self.recording.close()


def describe_engine(loaded: "LoadedEngine") -> dict[str, object]:
    """Return the header of a recording: the model and the engine settings that a replay needs."""
    ready = loaded.backend.probe()
    target = ready.details.get("target", "") if isinstance(ready, Ready) else ""
    return {
        "sporelm": __version__,
        "model": loaded.identity,
        "name": loaded.config.name,
        "backend": loaded.backend.name,
        "target": target,
        "kv": loaded.kv,
        "limits": asdict(loaded.engine.limits),
    }
