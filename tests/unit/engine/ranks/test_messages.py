"""Messages: each comes back as it was, and hostile bytes give a BackendError."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sporelm.engine import EngineConfig, ScheduledSequence, Step
from sporelm.engine.prompt_images import ScheduledImage
from sporelm.engine.ranks import messages
from sporelm.engine.ranks.messages import (
    Arrays,
    Done,
    Failed,
    RunStep,
    check_request,
    check_step,
    decode_reply,
    decode_request,
    encode,
)
from sporelm.errors import BackendError, ContextOverflow, MemoryShortage

LIMITS = EngineConfig(256, 256, 100, 64, 4, 8)


def step(**changes: Any) -> Step:
    """A step of one sequence of three tokens."""
    fields: dict[str, Any] = {
        "request_id": 1, "tokens": [1, 2, 3], "position": 0, "page_table": (2, 5), "num_outputs": 1
    }  # fmt: skip
    return Step([ScheduledSequence(**(fields | changes))], [], ())


def test_a_step_with_images_and_rotary_positions_returns() -> None:
    image = ScheduledImage(1, np.arange(8, dtype=np.float32).reshape(2, 4), 5, 7)
    sent = step(images=(image,), rope_positions=np.arange(9, dtype=np.int32).reshape(3, 3))
    sent = sent._replace(copies=[(1, 2)], state_copies=((0, 1),))
    request = decode_request(encode(RunStep(sent, 2, True)))
    assert isinstance(request, RunStep)
    assert (request.batch_index, request.wants_tokens) == (2, True)
    (got,) = request.step.sequences
    assert got.page_table == (2, 5)
    assert got.images[0][2:] == (5, 7)
    np.testing.assert_array_equal(got.images[0].values, image.values)
    np.testing.assert_array_equal(got.rope_positions, sent.sequences[0].rope_positions)
    assert (request.step.copies, request.step.state_copies) == ([(1, 2)], ((0, 1),))


@pytest.mark.parametrize("dtype", messages.NUMBER_TYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (2, 3)])
def test_arrays_return(dtype: np.dtype, shape: tuple[int, ...]) -> None:
    sent = np.ones(shape, dtype)
    reply = decode_reply(encode(Arrays([sent, sent.T])))
    assert isinstance(reply, Arrays)
    for array, original in zip(reply.arrays, (sent, sent.T), strict=True):
        assert array.dtype == dtype
        np.testing.assert_array_equal(array, original)


def test_objects_cannot_be_sent() -> None:
    with pytest.raises(TypeError, match="cannot hold"):
        encode(Arrays([object()]))  # type: ignore[list-item]
    with pytest.raises(ValueError):
        encode(Arrays([np.array([object()])]))


@given(st.binary(max_size=300))
def test_random_bytes_are_refused_or_a_message(data: bytes) -> None:
    for decode in (decode_request, decode_reply):
        with suppress(BackendError):
            assert isinstance(decode(data), messages.Message)


@given(st.data())
def test_changed_bytes_are_refused_or_a_message(data: st.DataObject) -> None:
    image = ScheduledImage(0, np.zeros((1, 2), np.float32), 0, 1)
    original = bytearray(encode(RunStep(step(images=(image,)))))
    for _ in range(data.draw(st.integers(1, 4))):
        original[data.draw(st.integers(0, len(original) - 1))] = data.draw(st.integers(0, 255))
    with suppress(BackendError):
        request = decode_request(bytes(original))
        if isinstance(request, RunStep):
            check_step(request.step, LIMITS)


@pytest.mark.parametrize(
    "bad",
    [
        step(tokens=[]),
        step(tokens=[100]),
        step(tokens=[-1]),
        step(position=-1),
        step(position=126),
        step(page_table=(2, 8)),
        step(page_table=(-1,)),
        step(page_table=tuple(range(5))),
        step(num_outputs=4),
        step(state_slot=1),
        step()._replace(copies=[(0, 8)]),
        step()._replace(state_copies=((0, 0),)),
        Step([], []),
        Step(step().sequences * 5, []),
        step(tokens=[1] * 65),
        step(images=(ScheduledImage(2, np.zeros((2, 4), np.float32), 0, 2),)),
        step(images=(ScheduledImage(0, np.zeros((2, 4), np.int32), 0, 2),)),
        step(images=(ScheduledImage(0, np.zeros((2, 4), np.float32), -1, 2),)),
        step(images=(ScheduledImage(1, np.zeros((2, 4), np.float32), 2, 4),)),
        step(images=(ScheduledImage(1, np.zeros((2, 4), np.float32), 0, 2),)),
        step(images=(ScheduledImage(0, np.zeros((2, 4), np.float32), 0, 257),)),
        step(page_table=()),
        step(tokens=[], page_table=(), num_outputs=0),
        step(adapter_id=-1),
        step(rope_positions=np.zeros((2, 3), np.int32)),
        step(rope_positions=np.zeros((3, 3), np.int64)),
    ],
)
def test_steps_that_do_not_fit_the_caches_are_refused(bad: Step) -> None:
    with pytest.raises(BackendError, match="out of range"):
        check_step(bad, LIMITS)


def test_a_step_that_fits_is_accepted() -> None:
    check_step(step(), LIMITS)
    check_step(step(images=(ScheduledImage(1, np.zeros((2, 4), np.float32), 1, 3),)), LIMITS)
    check_step(step(position=70, images=(ScheduledImage(0, np.zeros((3, 4), np.float32), 60, 80),)), LIMITS)


@pytest.mark.parametrize(
    "request_of",
    [
        lambda number: messages.ExportPages([number], []),
        lambda number: messages.ExportPages([], [number]),
        lambda number: messages.ImportPages([number], []),
        lambda number: messages.ImportStates([number], []),
        lambda number: messages.FetchLogits([number]),
        lambda number: messages.FetchCandidates(number),
        lambda number: messages.EmbedStep(step(page_table=(number,))),
    ],
)
def test_numbers_of_other_requests_are_checked(request_of: Any) -> None:
    limits = replace(LIMITS, num_states=4, state_interval=1)
    for number in (-1, 1000, 1 << 62):
        with pytest.raises(BackendError, match="out of range"):
            check_request(request_of(number), limits)
    if not isinstance(request_of(1), messages.EmbedStep):
        check_request(request_of(1), limits)


def test_errors_keep_their_class_and_message() -> None:
    for error in (MemoryShortage("too little"), ContextOverflow("too long"), BackendError("broken")):
        failure = decode_reply(encode(messages.make_failure(error)))
        assert isinstance(failure, Failed)
        found = messages.to_error(failure, "rank 1")
        assert type(found) is type(error)
        assert str(found) == f"rank 1: {error}"
    assert type(messages.to_error(messages.make_failure(ZeroDivisionError("x")), "rank 1")) is BackendError
    assert type(messages.to_error(Failed("sys", "x"), "rank 1")) is BackendError


def test_large_messages_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_MESSAGE_BYTES", 1000)
    encode(Done())
    with pytest.raises(BackendError, match="too large"):
        encode(Arrays([np.zeros(1000, np.float32)]))
