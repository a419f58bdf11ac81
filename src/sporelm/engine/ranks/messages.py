"""Messages between the engine and the workers of other ranks: tagged msgspec structs in MessagePack, never pickle.

Arrays are an extension type: a byte for the number type, a byte for the number of dimensions, the extents (uint32), the
bytes of the values. Whatever bytes arrive, decoding gives a message of this file or raises BackendError.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from sporelm import errors
from sporelm.engine.engine_config import EngineConfig
from sporelm.engine.prompt_images import IMAGE_IDS
from sporelm.engine.step import ScheduledSequence, Step
from sporelm.errors import BackendError, SporeError
from sporelm.ops.paged_attention import PAGE

MAX_MESSAGE_BYTES = 512 << 20
MAX_DIMENSIONS = 8
MAX_ERROR_CHARS = 4000
ARRAY_CODE = 1  # of the extension type
NUMBER_TYPES = tuple(np.dtype(name) for name in ("<f4", "<f2", "<u2", "|u1", "|i1", "<i4", "<i8", "|b1", "<f8"))

Array = np.ndarray
AdapterMatrices = dict[str, tuple[Array, Array]]  # a and b by the name of the weight


class Message(msgspec.Struct, array_like=True, tag=True):
    """The base of all messages."""


class OpenRank(Message):
    """Load the model and become a rank. The options are encoded by the layer that loads models. Answer: RankReady."""

    options: bytes
    addresses: dict[str, dict[str, bytes]] = {}  # of all ranks, after MeetRanks


class MeetRanks(Message):
    """Open addresses at which other ranks can exchange values with this one. Answer: RankAddresses."""

    options: bytes


class RunStep(Message):
    """Run a step, or one micro-batch of a step. Answer: Done, or Arrays with the argmax of each output row."""

    step: Step
    batch_index: int = 0  # of the micro-batch; 0 begins a step
    wants_tokens: bool = False
    keeps_output: bool = False  # also of an earlier micro-batch


class EmbedStep(Message):
    """Run a step for its last hidden states. Answer: Done, or Arrays with their shape, for FetchHidden."""

    step: Step
    wants_rows: bool = False


class FetchHidden(Message):
    """Return rows of the last hidden states of EmbedStep. Answer: Arrays."""

    start: int
    stop: int


class FetchLogits(Message):
    """Return rows of the last step's logits, of this rank's columns; None: all rows. Answer: Arrays."""

    rows: list[int] | None = None


class FetchCandidates(Message):
    """Return the `count` greatest logits of each row of the last step, and their columns of this rank. Answer: Arrays
    with the columns and the logits."""

    count: int


class ExportPages(Message):
    """Copy pages, and states, to the host. Answer: Arrays, one for each cache of pages, then those of states."""

    pages: list[int]
    states: list[int]


class ImportPages(Message):
    """Fill pages of each cache. Answer: Done."""

    pages: list[int]
    layers: list[Array]


class ImportStates(Message):
    """Fill recurrent states. Answer: Done."""

    states: list[int]
    arrays: list[Array]


class PutAdapter(Message):
    """Put some or all matrices of a LoRA adapter on the device, under a number of its own. Answer: Done."""

    adapter: int
    matrices: AdapterMatrices


class DropAdapters(Message):
    """Free adapters that no set has. Answer: Done."""

    adapters: list[int]


class BuildLora(Message):
    """Compile the programs of a set of adapters, given the number of each by its id in steps. Answer: Done."""

    number: int
    adapters: dict[int, int]


class UseLora(Message):
    """Run steps with a set of adapters from now on; 0: with none. Answer: Done."""

    number: int


class DiscardLora(Message):
    """Free a set of adapters that was never used. Answer: Done."""

    number: int


class UseImages(Message):
    """Take image rows of this number of columns from now on. Answer: Done."""

    columns: int


class Prepare(Message):
    """Compile all programs now. Answer: Done."""


class WaitAsSpare(Message):
    """No rank is free: wait until one is lost. It is not answered; MeetRanks, OpenRank or Close follow."""


class Close(Message):
    """Free everything and end. Answer: Done."""


class Done(Message):
    """A request was carried out."""


class Arrays(Message):
    """The results of a request."""

    arrays: list[Array]


class Failed(Message):
    """A request failed with an error: the name of its class, and its message."""

    kind: str
    message: str


class Heartbeat(Message):
    """The process is alive, also during a long step. `phase` tells how far loading is."""

    phase: str = ""


class Hello(Message):
    """The first message of a process that has connected. `rank` is -1 for one that takes the rank it is given."""

    version: str
    host: str
    rank: int


class RankAddresses(Message):
    """The addresses of a rank, by group: the entries that it has for the store of torch.distributed."""

    addresses: dict[str, dict[str, bytes]]


class RankReady(Message):
    """The answer to OpenRank: what must be equal on all ranks."""

    identity: str  # hash of the model's files
    signature: str  # hash of the limits and of the collectives of the plan


Request = (
    MeetRanks
    | OpenRank
    | RunStep
    | EmbedStep
    | FetchHidden
    | FetchLogits
    | FetchCandidates
    | ExportPages
    | ImportPages
    | ImportStates
    | PutAdapter
    | DropAdapters
    | BuildLora
    | UseLora
    | DiscardLora
    | UseImages
    | Prepare
    | WaitAsSpare
    | Close
)
Reply = Done | Arrays | Failed | Heartbeat | Hello | RankAddresses | RankReady


def _encode_array(value: Any) -> msgspec.msgpack.Ext:
    if not isinstance(value, np.ndarray):
        if isinstance(value, np.integer):
            raise NotImplementedError
        raise TypeError(f"a message cannot hold a {type(value).__name__}")
    head = bytes((NUMBER_TYPES.index(value.dtype), value.ndim)) + np.array(value.shape, "<u4").tobytes()
    values = np.ascontiguousarray(value).data.cast("B") if value.size else b""  # not an extra copy
    return msgspec.msgpack.Ext(ARRAY_CODE, b"".join((head, values)))


def _decode_array(code: int, data: memoryview) -> NDArray[Any]:
    """Return an array that is a view of the message. Raises ValueError."""
    if code != ARRAY_CODE or len(data) < 2 or data[0] >= len(NUMBER_TYPES) or data[1] > MAX_DIMENSIONS:
        raise ValueError("not an array")
    dtype, begin = NUMBER_TYPES[data[0]], 2 + 4 * data[1]
    shape = np.frombuffer(data[2:begin], "<u4").tolist()
    if len(shape) != data[1] or prod(shape) * dtype.itemsize != len(data) - begin:
        raise ValueError(f"an array of shape {shape} does not have {len(data) - begin} bytes")
    return np.frombuffer(data[begin:], dtype).reshape(shape)


def _check_array(kind: Any, value: Any) -> Any:
    """Return an array that `_decode_array` has made. Raises ValueError for other values in its place."""
    if not isinstance(value, np.ndarray):
        raise ValueError("an array is expected")
    return value


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_encode_array)
_REQUESTS = msgspec.msgpack.Decoder(Request, ext_hook=_decode_array, dec_hook=_check_array)
_REPLIES = msgspec.msgpack.Decoder(Reply, ext_hook=_decode_array, dec_hook=_check_array)


def encode(message: Message) -> bytes:
    """Return the bytes of a message. Raises BackendError for one that is too large."""
    data = _ENCODER.encode(message)
    if len(data) > MAX_MESSAGE_BYTES:
        kind = type(message).__name__
        raise BackendError(f"ranks: message too large ({kind} of {len(data)} bytes; allowed {MAX_MESSAGE_BYTES})")
    return data


def decode_request(data: bytes | bytearray | memoryview) -> Request:
    """Return the request in these bytes. Raises BackendError."""
    request: Request = _decode(_REQUESTS, data)
    return request


def decode_reply(data: bytes | bytearray | memoryview) -> Reply:
    """Return the reply in these bytes. Raises BackendError."""
    reply: Reply = _decode(_REPLIES, data)
    return reply


def _decode(decoder: "msgspec.msgpack.Decoder[Any]", data: bytes | bytearray | memoryview) -> Any:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError) as reason:
        raise BackendError(f"ranks: message is not valid ({str(reason)[:200]})") from None


def make_failure(error: BaseException) -> Failed:
    """Return the reply that tells another process of an error."""
    kind = type(error).__name__ if isinstance(error, SporeError) else "BackendError"
    message = str(error) if isinstance(error, SporeError) else f"{type(error).__name__}: {error}"
    return Failed(kind, message[:MAX_ERROR_CHARS])


def to_error(failure: Failed, rank: str) -> SporeError:
    """Return the error that a rank replied with."""
    kind = getattr(errors, failure.kind, None)
    message = f"{rank}: {failure.message[:MAX_ERROR_CHARS]}"
    if isinstance(kind, type) and issubclass(kind, SporeError):
        return kind(message)
    return BackendError(message)


def check_request(request: Request, limits: EngineConfig) -> None:
    """Raise BackendError for a request whose numbers do not fit the caches. Numbers of arrays are checked by their
    shapes, where they are used."""
    if isinstance(request, RunStep | EmbedStep):
        check_step(request.step, limits)
    elif isinstance(request, ExportPages | ImportPages):
        _require_numbers(request.pages, limits.num_pages, "a page")
    if isinstance(request, ExportPages | ImportStates):
        for state in request.states:
            _require_state(state, limits)
    if isinstance(request, FetchLogits) and request.rows is not None:
        _require_numbers(request.rows, limits.token_budget, "a row")
    if isinstance(request, FetchCandidates):
        _require_numbers([request.count], limits.vocab + 1, "the number of candidates")
    if isinstance(request, BuildLora):
        _require(request.number > 0, "the number of a set of adapters")


def _require_state(slot: int, limits: EngineConfig) -> None:
    """Raise BackendError for a slot outside the recurrent states; in a model without them it is -1 or 0, and unused."""
    first, end = (0, limits.num_states) if limits.num_states else (-1, 1)
    _require(first <= slot < end, "a state")


def _require_numbers(numbers: Sequence[int], count: int, name: str) -> None:
    _require(all(0 <= number < count for number in numbers), name)


def check_step(step: Step, limits: EngineConfig) -> None:
    """Raise BackendError for a step that does not fit the caches: its numbers become addresses in native code."""
    num_rows, max_pages = 0, -(-limits.max_context // PAGE)
    _require(0 < len(step.sequences) <= limits.max_batch, "the number of sequences")
    for scheduled in step.sequences:
        count, page_table = len(scheduled.tokens), scheduled.page_table
        num_rows += count
        _require(count > 0 and 0 <= scheduled.num_outputs <= count, "the number of outputs")
        _require(scheduled.position >= 0, "a position")
        _require(scheduled.position + count <= len(page_table) * PAGE, "the length of a page table")
        _require(len(page_table) <= max_pages, "the length of a page table")
        _require_numbers(page_table, limits.num_pages, "a page")
        _require(scheduled.adapter_id >= 0, "an adapter")
        _require_state(scheduled.state_slot, limits)
        _check_tokens(scheduled, limits)
    _require(num_rows <= limits.token_budget, "the number of tokens")
    _check_copies(step.copies, limits.num_pages)
    _check_copies(step.state_copies, limits.num_states)


def _check_tokens(scheduled: ScheduledSequence, limits: EngineConfig) -> None:
    tokens, vocab, rope = scheduled.tokens, limits.vocab, scheduled.rope_positions
    _require(rope is None or (rope.shape == (len(tokens), 3) and rope.dtype == np.int32), "rotary positions")
    if not scheduled.images:
        _require(min(tokens) >= 0 and max(tokens) < vocab, "a token")
        return
    _require(all(0 <= token < vocab or token >= IMAGE_IDS for token in tokens), "a token")
    for image in scheduled.images:
        is_matrix = image.values.ndim == 2 and image.values.dtype == np.float32
        _require(is_matrix and 0 <= image.first <= len(tokens) - len(image.values), "an image")
        first = scheduled.position + image.first
        is_inside = 0 <= image.start <= first and first + len(image.values) <= image.stop <= limits.max_context
        _require(is_inside, "the span of an image")


def _check_copies(copies: Sequence[tuple[int, int]], count: int) -> None:
    _require(all(0 <= number < count for pair in copies for number in pair), "a copy")


def _require(holds: bool, name: str) -> None:
    if not holds:
        raise BackendError(f"ranks: message is not valid ({name} is out of range)")


def split_adapter(adapter: Mapping[str, Any], max_bytes: int) -> Iterator[AdapterMatrices]:
    """Return the matrices of an adapter as arrays of the host, for `PutAdapter`, in parts of about this size."""
    copies: dict[int, Array] = {}
    part: AdapterMatrices = {}
    nbytes = 0
    for name, matrices in adapter.items():
        first, second = (copies.setdefault(id(each), _to_array(each)) for each in matrices)
        if part and nbytes + first.nbytes + second.nbytes > max_bytes:
            yield part
            part = {}
            nbytes = 0
        part[name] = first, second
        nbytes += first.nbytes + second.nbytes
    yield part


def _to_array(matrix: Any) -> Array:
    return np.asarray(matrix if isinstance(matrix, np.ndarray) else matrix.numpy(), np.float32)
