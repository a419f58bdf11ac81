"""What is written down of an engine's work, if `LLM` is asked to: a trace of where its time goes, a recording."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from sporelm import __version__
from sporelm.api.paths import path_of
from sporelm.backends.backend import Ready
from sporelm.engine.reading import EncoderEngine
from sporelm.engine.recording import RecordingFile
from sporelm.engine.trace import Summary, Trace
from sporelm.engine.trace_file import TraceFile
from sporelm.errors import RequestError

if TYPE_CHECKING:
    from sporelm.api.loading import Opened


class Watching:
    """The files of one model that is open."""

    def __init__(self, trace: str | Path | None, record: str | Path | None) -> None:
        """Begin the files, before anything else takes time. Raises RequestError for one that cannot be."""
        if trace is not None and record is not None:
            paths = path_of("trace", trace), path_of("record", record)
            if paths[0].resolve() == paths[1].resolve():
                raise RequestError(f"trace and record are both {paths[0]}: one would take the other's place; give two")
        self.trace: Trace | None = None
        self.recording = RecordingFile(path_of("record", record)) if record is not None else None
        self.file: TraceFile | None = None
        try:
            self.file = TraceFile(path_of("trace", trace), {"sporelm": __version__}) if trace is not None else None
        except BaseException:
            self.close()
            raise

    def start(self, opened: "Opened") -> None:
        """Look at what this engine does."""
        if self.recording is not None:
            if isinstance(opened.engine, EncoderEngine):
                raise RequestError("record is given, but an encoder's steps leave nothing to be repeated: leave it out")
            self.recording.follow(opened.engine, opened.worker, about(opened))
        if self.file is not None:
            self.trace = opened.engine.watch = Trace(self.file, opened.worker, opened.draft)

    @property
    def summary(self) -> Summary | None:
        """What the trace has seen."""
        return self.trace.summary if self.trace else None

    def notes(self) -> list[str]:
        """What the user should know of the files, once they are closed."""
        notes = []
        if self.file is not None:
            if self.file.failure is not None:
                notes.append(f"the trace {self.file.path} could not be written: {self.file.failure}")
            elif self.file.left_out:
                kept = f"{self.file.count} events, as many as it may have"
                notes.append(f"the trace {self.file.path} has {kept}; {self.file.left_out} later ones are left out")
        if self.recording is not None and self.recording.failure is not None:
            notes.append(f"the recording {self.recording.path} ends early: {self.recording.failure}")
        return notes

    @property
    def has_failed(self) -> bool:
        """Whether a file could not be written; reaching its size limit is not a failure."""
        is_trace_lost = self.file is not None and self.file.failure is not None
        return is_trace_lost or (self.recording is not None and self.recording.has_failed)

    def close(self) -> None:
        """Finish the files. The engine must be at rest."""
        if self.trace is not None:
            self.trace.close()
        elif self.file is not None:
            self.file.discard()  # nothing was seen
        if self.recording is not None:
            self.recording.close()


def about(opened: "Opened") -> dict[str, object]:
    """What a recording must know of the engine that made it, so that another one can repeat it."""
    ready = opened.backend.probe()
    target = ready.details.get("target", "") if isinstance(ready, Ready) else ""
    return {
        "sporelm": __version__,
        "model": opened.identity,
        "name": opened.config.name,
        "backend": opened.backend.name,
        "target": target,
        "kv": opened.kv,
        "limits": asdict(opened.engine.limits),
    }
