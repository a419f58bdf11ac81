"""Micro-batches hold the sequences of a step in their order."""

from hypothesis import given
from hypothesis import strategies as st

from sporelm.engine import ScheduledSequence, Step
from sporelm.engine.ranks.micro_batches import split_step


@given(st.lists(st.tuples(st.integers(1, 200), st.booleans()), min_size=1, max_size=8), st.integers(1, 6))
def test_a_step_is_split_without_loss(lengths: list[tuple[int, bool]], count: int) -> None:
    sequences = [
        ScheduledSequence(number, list(range(length)), 7, (0, 1, 2, 3), int(has_output))
        for number, (length, has_output) in enumerate(lengths)
    ]
    step = Step(sequences, [(1, 2)], ((3, 4),))
    steps = split_step(step, count)
    assert 1 <= len(steps) <= count
    assert all(each.sequences for each in steps)
    assert (steps[0].copies, steps[0].state_copies) == (step.copies, step.state_copies)
    assert not any(each.copies or each.state_copies for each in steps[1:])
    assert sum(each.num_tokens for each in steps) == step.num_tokens
    assert sum(each.num_outputs for each in steps) == step.num_outputs
    parts = [part for each in steps for part in each.sequences]
    for whole in sequences:
        own = [part for part in parts if part.request_id == whole.request_id]
        assert [token for part in own for token in part.tokens] == whole.tokens
        assert [part.position for part in own] == [7 + sum(len(p.tokens) for p in own[:n]) for n in range(len(own))]
        assert [part.num_outputs for part in own[:-1]] == [0] * (len(own) - 1)
    assert [part.request_id for part in parts] == sorted(part.request_id for part in parts)


def test_decoding_sequences_are_divided_evenly() -> None:
    step = Step([ScheduledSequence(number, [1], 0, (0,), 1) for number in range(7)], [])
    assert [each.num_tokens for each in split_step(step, 3)] == [3, 3, 1]
