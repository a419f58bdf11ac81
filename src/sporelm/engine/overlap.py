"""Overlap: the next step is scheduled and launched while one runs, on asynchronous devices (ADR 0047).

    schedule n+1 | launch n+1 | read the tokens of n, commit n | sample n+1 | schedule n+2 | ...
                                while n+1 runs

A step continues from the one in flight. The token that is sampled there is UNKNOWN, and read on the device. The row of
a request that turns out to have ended, or to go on with other tokens, is discarded: nothing of it is committed, so its
pages never enter the prefix cache. The device runs launches in order, and only later launches reuse the pages.
"""

from collections.abc import Collection
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from sporelm.engine.model_output import ModelOutput, PreviousTokens
from sporelm.engine.sampling.device_sampler import DeviceSampler, SampledTokens, needs_history
from sporelm.engine.scheduler import StepOutput
from sporelm.engine.step import ScheduledSequence, Step

if TYPE_CHECKING:
    from sporelm.engine.engine import Engine


class LaunchedStep(NamedTuple):
    """A step in flight, and its sampling."""

    step: Step
    output: ModelOutput
    sampled: SampledTokens
    rows: dict[int, ScheduledSequence]  # the sequences that count, by request id
    discarded: set[int]  # requests whose rows do not count
    begin_time: float  # of perf_counter, as the following
    scheduled_time: float
    must_drain: bool  # whether it must be committed before the next step is scheduled

    @property
    def tokens(self) -> PreviousTokens:
        """The sampled tokens, for the next step."""
        rows, row = dict[int, int](), 0
        for scheduled in self.step.sequences:
            row += scheduled.num_outputs
            if scheduled.num_outputs:
                rows[scheduled.request_id] = row - 1
        return PreviousTokens(self.sampled.tokens, rows)


class Overlap:
    """Steps of an engine, each launched before the one before is committed."""

    def __init__(self, engine: "Engine", sampler: DeviceSampler) -> None:
        self.engine, self.sampler = engine, sampler
        self.launched: LaunchedStep | None = None
        self._outputs: list[StepOutput] = []  # of steps that were committed between two calls of `step`
        self._read_time = 0.0  # when the tokens of the last step were read, of perf_counter
        self._end_time = 0.0  # when they were committed

    def step(self) -> list[StepOutput]:
        """Launch a step, and commit the one before. Return the outputs of that one; see `Engine.step`."""
        scheduler = self.engine.scheduler
        if self.launched is not None and (self.launched.must_drain or scheduler.must_drain):
            self.drain()
        if not scheduler.is_idle:
            self._advance()
        if scheduler.is_idle:
            self.forget()
        return self.take_outputs()

    def take_outputs(self) -> list[StepOutput]:
        """Return the outputs of committed steps that `step` has not returned yet."""
        outputs, self._outputs = self._outputs, []
        return outputs

    def drain(self) -> None:
        """Commit the step in flight, if there is one. `step` returns its outputs. Changes requests."""
        launched, self.launched = self.launched, None
        self.engine.scheduler.in_flight = {}
        if launched is not None:
            self._finish(launched)

    def forget(self) -> None:
        """Forget the step in flight: it has failed, or all of its requests have ended. Changes the generators."""
        self.launched = None
        self.engine.scheduler.in_flight = {}
        self.sampler.forget()

    def close(self) -> None:
        """Forget the step in flight, and free the programs of the sampler."""
        self.forget()
        self.sampler.close()

    def _advance(self) -> None:
        engine, previous = self.engine, self.launched
        begin = perf_counter()
        engine.scheduler.in_flight = previous.rows if previous is not None else {}
        try:
            step = engine.scheduler.next_step()
        except BaseException:
            self.drain()  # the step before is not at fault
            raise
        scheduled_time = perf_counter()
        if not step.sequences:
            self.drain()
            return
        if not step.sequences[0].is_sampled:
            self._run_rows(step, begin)
            return
        engine.last_step = step
        states = engine.sampler.states
        ids = [scheduled.request_id for scheduled in step.sequences if scheduled.num_outputs and scheduled.is_sampled]
        is_early = not any(id in states and needs_history(states[id]) for id in ids)
        try:
            output = engine.runner.run(step, previous.tokens if previous is not None else None)
            sampled = self._sample(step, output, ()) if is_early else None
        except BaseException:
            self.drain()
            raise
        rows = engine.scheduler.in_flight = {scheduled.request_id: scheduled for scheduled in step.sequences}
        discarded = set[int]()
        if previous is not None:
            self.launched = None
            self._finish(previous)
            discarded = engine.scheduler.find_discarded(step, previous.sampled.corrected)
            for request_id in discarded:
                del rows[request_id]
        if sampled is None:
            sampled = self._sample(step, output, discarded)
        sampled.cancel_draws(discarded)
        must_drain = any(
            not scheduled.is_sampled or self._is_sampled_by_host(scheduled) for scheduled in step.sequences
        )
        self.launched = LaunchedStep(step, output, sampled, rows, discarded, begin, scheduled_time, must_drain)

    def _sample(self, step: Step, output: ModelOutput, discarded: Collection[int]) -> SampledTokens:
        states = self.engine.sampler.states
        if discarded:
            states = {id: state for id, state in states.items() if id not in discarded}
        return self.sampler.launch(output, step, states)

    def _is_sampled_by_host(self, scheduled: ScheduledSequence) -> bool:
        state = self.engine.sampler.states.get(scheduled.request_id) if scheduled.num_outputs else None
        return state is not None and not self.sampler.draws_on_device(state)

    def _finish(self, launched: LaunchedStep) -> None:
        """Read the tokens of a step and commit it."""
        engine, step = self.engine, launched.step
        # All that can fail on the device comes first: no state has changed then, and no request ends.
        launched.sampled.read()
        rows = None if step.sequences[-1].is_sampled else launched.output.logits
        engine.sampling_step = step
        sampled = launched.sampled.finish()
        read = perf_counter()
        num_tokens = step.num_tokens
        engine.observe_time(step, num_tokens, sampled.tokens, read - max(launched.scheduled_time, self._read_time))
        self._read_time = read
        outputs = engine.scheduler.commit(step, sampled, launched.discarded)
        if rows is not None:
            outputs += engine.scheduler.deliver_rows(step, rows)
        engine.sampling_step = None
        self._outputs += outputs
        # A step's time begins when the one before has ended: the times of steps add up to that of the engine.
        begin, scheduled_time = (max(time, self._end_time) for time in (launched.begin_time, launched.scheduled_time))
        self._end_time = perf_counter()
        engine.record_step(step, num_tokens, (begin, scheduled_time, read, read, self._end_time))
        engine.forget_ended(outputs)

    def _run_rows(self, step: Step, begin: float) -> None:
        """Run a step whose requests all want rows, after the one in flight, in which none of them is."""
        self.drain()
        self._outputs += self.engine.step_rows(step, max(begin, self._end_time))
        self._end_time = perf_counter()
