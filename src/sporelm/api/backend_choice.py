"""`--backend auto`: measures the host and every other device, and picks the fastest one that holds the model."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sporelm.backends.backend_registry import find_devices, normalize_device
from sporelm.backends.memory_residency import available_on
from sporelm.backends.opencl_detection import find_driver_failure
from sporelm.backends.protocol import Backend
from sporelm.errors import BackendError, SporeError
from sporelm.units import in_units

AUTO, HOST, OPENCL = "auto", "cpu", "opencl"
MIN_GAIN = 1.2  # times the host's speed; below that the difference may be noise


@dataclass(frozen=True)
class TokenCost:
    """The work of one token of a model on a back-end, and the memory that the model takes.

    stream_bytes   read for each token: the weights
    operations     of the matrix multiplications, for each token of a model that is limited by them (encoders)
    memory_bytes   of the weights, a context of the KV cache, and a step
    host_seconds   of reading the weights that are on the CPU, for a model that is split between a device and the CPU
    placement      the layers on the device, for such a model
    """

    stream_bytes: int
    operations: int = 0
    memory_bytes: int = 0
    host_seconds: float = 0.0
    placement: str = ""


@dataclass(frozen=True)
class BackendChoice:
    """A back-end and its device, and why they are picked."""

    name: str
    device: str
    reason: str

    def __str__(self) -> str:
        return f"backend: {label(self.name, self.device)} ({self.reason})"


OpenDevice = Callable[[str, str], Backend]  # by the names of a back-end and its device


def choose_backend(
    device: str,
    open_candidate: OpenDevice,
    cost_on: Callable[[Backend], TokenCost],
    *,
    allows_host: bool = True,
    strict: bool = False,
) -> BackendChoice:
    """Return the back-end and device with the lowest estimated time per token.

    device        "cpu" allows every device; another name only that one
    allows_host   whether the host has the data type that is asked for
    strict        an unusable device, or an OpenCL driver that fails its check, is an error

    Torch on its CPU device and the reference are left out: our own back-end is the one for the CPU. Without other
    devices nothing is measured. Raises BackendError if no candidate is left, or if `strict`.
    """
    device = normalize_device(device)
    is_any = device == HOST
    candidates = [pair for pair in find_devices() if is_any or device in (pair[1], pair[1].partition(":")[0])]
    failure = find_driver_failure() if is_any or device.partition(":")[0] == OPENCL else None
    notes = [] if failure is None else [f"{OPENCL} cannot be used: {failure.rstrip('.')}"]
    if notes and strict:
        raise _strict_error(notes[0])
    if not candidates and is_any and allows_host:
        return BackendChoice(HOST, HOST, "; ".join(["the only device that is ready here", *notes]))
    seconds: dict[tuple[str, str], float] = {}
    for name, place in ([(HOST, HOST)] if is_any and allows_host else []) + candidates:
        try:
            seconds[name, place], placement = _time_token(open_candidate, name, place, cost_on)
            having = f" with {placement}" if placement else ""
            notes.append(f"{label(name, place)} {1 / seconds[name, place]:.3g} tokens/s{having}")
        except SporeError as error:
            problem = f"{label(name, place)} cannot be used: {error}"
            if strict and place != HOST:
                raise _strict_error(problem) from error
            notes.append(problem)
    if not seconds:
        lacking = "a device other than the CPU, which computes in f32," if is_any else f"a device {device!r}"
        reason = "; ".join(notes) or f"no back-end that auto may choose has {lacking} here"
        if is_any and allows_host:
            return BackendChoice(HOST, HOST, reason)
        raise BackendError(f"back-end 'auto' finds no device: {reason}. 'spore doctor' lists what is ready")
    best = min(seconds, key=seconds.__getitem__)
    host = seconds.get((HOST, HOST))
    if host is not None and host < MIN_GAIN * seconds[best]:
        best = HOST, HOST
    return BackendChoice(*best, "bandwidth and memory allow at most " + "; ".join(notes))


def _strict_error(problem: str) -> BackendError:
    return BackendError(
        f"the option strict: {problem}. Remove the option strict, or name a back-end with the option backend"
    )


def _time_token(
    open_candidate: OpenDevice, name: str, device: str, cost_on: Callable[[Backend], TokenCost]
) -> tuple[float, str]:
    """Return the least seconds of a token on a device, and the layers on it if it has only some. Raises SporeError if
    it cannot be opened or is too small."""
    with _translate_errors("opening it"):
        backend = open_candidate(name, device)
    try:
        with _translate_errors("asking for its memory"):
            work, free = cost_on(backend), available_on(backend)
        if free is not None and free < work.memory_bytes:
            raise BackendError(f"the model needs {in_units(work.memory_bytes)}, {in_units(free)} are free")
        with _translate_errors("measuring its speed"):
            rates = backend.measure_limits()
        bandwidth = rates.get("token_bytes_s", rates["stream_bytes_s"])
        seconds = max(work.stream_bytes / bandwidth, work.operations / rates["f32_ops_s"], 1e-12)
        return seconds + work.host_seconds, work.placement
    finally:
        backend.close()


@contextmanager
def _translate_errors(work: str) -> Iterator[None]:
    """Turn errors of a vendor's library, which has classes of its own, into BackendError."""
    try:
        yield
    except SporeError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise BackendError(f"{work} failed: {type(error).__name__}: {reason}") from error


def label(name: str, device: str) -> str:
    """Return the name of a back-end with its device, unless that is the host."""
    return name if device == HOST else f"{name} on {device}"
