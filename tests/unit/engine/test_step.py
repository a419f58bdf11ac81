"""Counts of a step, and its form in recordings."""

from sporelm.engine.step import UNKNOWN, ScheduledSequence, Step

STEP = Step(
    [
        ScheduledSequence(1, [5, 6, 7], 0, (3,), 1),
        ScheduledSequence(2, [UNKNOWN], 64, (4, 5), 1, state_slot=2),
        ScheduledSequence(3, [8, 9], 2, (6,), 2, is_sampled=False),
        ScheduledSequence(4, [1], 0, (7,), 0),
    ],
    [(3, 9)],
)


def test_tokens_and_outputs_of_all_sequences_are_counted() -> None:
    assert (STEP.num_tokens, STEP.num_outputs) == (7, 4)
    assert Step([], []).num_outputs == 0


def test_a_step_is_read_as_it_was_written() -> None:
    written = STEP.to_json()
    assert Step.from_json(written).to_json() == written
