"""Split a step into micro-batches, so that the stages of a pipeline compute at the same time (Huang et al. 2019)."""

from sporelm.engine.step import ScheduledSequence, Step

MIN_TOKENS = 16  # of a part of a prompt that is split


def split_step(step: Step, count: int) -> list[Step]:
    """Return steps with the sequences of this one in their order, of about as many tokens each, at most `count`.

    Prompts without images may be split. The copies of pages and states come first.
    """
    if count < 2:
        return [step]
    target = max(1, -(-step.num_tokens // count))
    groups: list[list[ScheduledSequence]] = [[]]
    room = target
    for scheduled in step.sequences:
        rest: ScheduledSequence | None = scheduled
        while rest is not None:
            if room <= 0 and len(groups) < count:
                groups.append([])
                room = target
            first, rest = _split_sequence(rest, room) if len(groups) < count else (rest, None)
            groups[-1].append(first)
            room -= len(first.tokens)
            if rest is not None:
                room = 0
    steps = [Step(group, []) for group in groups]
    return [Step(groups[0], step.copies, step.state_copies), *steps[1:]]


def _split_sequence(scheduled: ScheduledSequence, length: int) -> tuple[ScheduledSequence, ScheduledSequence | None]:
    """Return the first `length` tokens of a sequence and the others; all and None where it must not be split."""
    count = len(scheduled.tokens)
    num_known = count - scheduled.num_outputs  # tokens without outputs
    if (
        scheduled.images
        or scheduled.rope_positions is not None
        or not MIN_TOKENS <= length <= count - MIN_TOKENS
        or length > num_known
    ):
        return scheduled, None
    first = scheduled._replace(tokens=scheduled.tokens[:length], num_outputs=0)
    return first, scheduled._replace(tokens=scheduled.tokens[length:], position=scheduled.position + length)
