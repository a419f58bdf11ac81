"""The sampler of asynchronous devices (ADR 0046): tokens are sampled there, and fetched when they are needed.

The result is that of `Sampler`: uncertain draws (within the error bound), and the rare samplers, are left to the host.
It fetches the rows of logits that it needs and continues with the same random numbers.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from math import inf, isnan, log
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sporelm import ops
from sporelm.backends.protocol import Backend, Fetch, Handle
from sporelm.engine.constraint import collect_words
from sporelm.engine.model_output import ModelOutput
from sporelm.engine.sampling.filters import TINY
from sporelm.engine.sampling.logit_edits import LogitEdits, collect_edits
from sporelm.engine.sampling.sampler import (
    NOT_A_TOKEN,
    DraftCheck,
    SamplerOutput,
    SamplerState,
    TokenLogprobs,
    begin_checks,
    continue_check,
    run_checks,
)
from sporelm.engine.sampling.sampler_params import Sampling
from sporelm.engine.step import Step
from sporelm.ops import Spec, Symbol
from sporelm.plan import Plan
from sporelm.tensor.dtype import F32, I32

MAX_ROWS = 8192  # output rows of a step
MAX_EDITS = 1 << 20  # of all rows of a step; rows beyond are sampled on the host
CANDIDATES = (64, 256, 1024, 4096)  # for rows with filters; the host takes rows that need more
TIES = 24  # candidates behind top_k, so that others equal to its last one are seen
TOP_LOGPROBS = (1, 5, 20, 100)
MIN_TEMPERATURE = 1e-30  # below, float32 quotients would lose digits
SMALLEST_BUCKET = 8  # edits, masks and scored rows are padded to this number, or a power of two
GREEDY = (0.0, 0.0, 1.0, -inf, 0.0)  # options of rows at temperature 0
ARGMAX = (-1.0, 0.0, 1.0, -inf, 0.0)  # options of rows that are not drawn here

# the array that has the extent of each symbol
EXTENTS = {"outputs": "options", "edits": "edits", "masked": "masked_rows", "scored": "scored_rows"}

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]


class SamplingProgram(NamedTuple):
    """The key of a sampling plan: its calls and their options.

    candidates      for rows with filters; 0: there are no such rows
    sums_rows       whether sums over whole rows are needed
    has_edits       whether logits are edited
    has_masks       whether some rows are masked by a grammar
    top_logprobs    alternatives whose log probabilities are computed; 0: none, and not those of the tokens
    """

    candidates: int
    sums_rows: bool
    has_edits: bool
    has_masks: bool
    top_logprobs: int

    def trace(self, vocab: int, max_rows: int) -> ops.Graph:
        """Return the graph of this program."""
        rows, edits = Symbol("outputs", max_rows), Symbol("edits", MAX_EDITS)
        masked, scored = (Symbol(name, bucket_of(max_rows)) for name in ("masked", "scored"))
        words = -(-vocab // 32)
        specs = {
            "greedy": Spec((rows,), I32),
            "logits": Spec((rows, vocab), F32),
            "options": Spec((rows, len(GREEDY)), F32),
        }
        if self.has_edits:
            specs |= {"edit_places": Spec((edits, 2), I32), "edits": Spec((edits, 3), F32)}
        if self.has_masks:
            specs |= {
                "masked_rows": Spec((masked,), I32),
                "mask_words": Spec((masked, words), I32),
                "mask_places": Spec((masked, 2), I32),
                "mask_options": Spec((masked, len(GREEDY)), F32),
            }
        if self.top_logprobs:
            specs["scored_rows"] = Spec((scored,), I32)
        return ops.trace(self._compute, specs)

    def _compute(self, **inputs: Any) -> dict[str, Any]:
        greedy, logits = inputs["greedy"], inputs["logits"]
        draw: Callable[..., Any] = ops.draw_tokens
        options = {"k": self.candidates, "whole": self.sums_rows}
        edited = ops.edit_logits(logits, inputs["edit_places"], inputs["edits"]) if self.has_edits else logits
        draws = draw(edited, inputs["options"], **options)
        if self.has_masks:
            words = inputs["mask_words"]
            masked = ops.mask_logits(edited, inputs["masked_rows"], words)
            second = draw(masked, inputs["mask_options"], **options)
            draws = ops.choose_allowed(draws, inputs["mask_places"], words, second)
        tokens = ops.place_tokens(greedy, draws)
        outputs = {"tokens": tokens, "draws": draws}
        if self.top_logprobs:
            scores = ops.token_logprobs(logits, tokens, inputs["scored_rows"], k=self.top_logprobs)
            outputs["logprobs"], outputs["top_ids"] = scores
        return outputs


class DeviceOptions(NamedTuple):
    """The options of one request, as the device takes them.

    columns         those of `ops.draw_tokens`, without the uniform number
    is_drawn        whether random numbers are needed
    candidates      that suffice as far as can be known; 0 without filters
    needs_sums      whether sums over the whole row are needed: without filters, or for top_p without top_k
    top_logprobs    the bucket of alternatives whose log probabilities are requested; 0: none, and not the token's
    """

    columns: tuple[float, float, float, float]
    is_drawn: bool
    candidates: int
    needs_sums: bool
    top_logprobs: int


class DeviceDraw(NamedTuple):
    """The draw of one request: its output row, and the random numbers that were taken for it."""

    state: SamplerState
    options: DeviceOptions
    row: int
    num_taken: int


class MaskedDraw(NamedTuple):
    """A draw from masked logits: its row, whether it is used only if the mask forbids the first draw of the row."""

    row: int
    is_second: bool
    options: tuple[float, ...]
    words: Ints


class DeviceSampler:
    """Draws tokens on the device, for all requests of a step. Steps are finished in the order of their launches.

    A step may be launched before the former one is finished, with one limit: logits processors and constraints are read
    when a step is launched, so the former step of a request that has any must be finished (`needs_history`).
    """

    def __init__(self, backend: Backend, vocab: int, max_rows: int = MAX_ROWS) -> None:
        self.backend, self.vocab, self.max_rows = backend, vocab, max_rows
        self.plans: dict[SamplingProgram, Plan] = {}
        self.num_ahead: dict[int, int] = {}  # by request id: random numbers taken by steps that are not finished
        self.unfinished: list[SampledTokens] = []  # in the order of their launches
        self.num_draws = 0
        self.num_uncertain = 0  # draws that the host repeated

    def draws_on_device(self, state: SamplerState) -> bool:
        """Return whether the device draws this request's tokens: no sampler is rare, and no option extreme."""
        return self._options(state) is not None

    def launch(self, model_output: ModelOutput, step: Step, states: Mapping[int, SamplerState]) -> "SampledTokens":
        """Launch the sampling of a step and return at once. Takes random numbers from the states.

        Sequences with drafts, and requests for which `draws_on_device` is false, are sampled by the host when the step
        is finished. The output of the model must be valid until then.
        """
        draws: dict[int, DeviceDraw] = {}
        edits: list[tuple[int, LogitEdits]] = []
        row = num_edits = 0
        for scheduled in step.sequences:
            if not scheduled.is_sampled:
                break  # the last ones
            request, num_outputs = scheduled.request_id, scheduled.num_outputs
            state = states.get(request) if num_outputs == 1 else None
            options = self._options(state) if state is not None else None
            if state is not None and options is not None:
                edit = collect_edits(state.processors) if state.processors else None
                num_new = len(edit.tokens) if edit is not None else 0
                if num_edits + num_new <= MAX_EDITS:
                    draws[request] = DeviceDraw(state, options, row, 0)
                    num_edits += num_new
                    if edit is not None and num_new:
                        edits.append((row, edit))
            row += num_outputs
        if not draws:
            return SampledTokens(self, model_output, step, states, {}, model_output.argmax_handle, {})
        try:
            return self._launch_draws(model_output, step, states, draws, edits)
        except BaseException:
            for draw in draws.values():
                draw.state.rewind(draw.num_taken)
            raise

    def _launch_draws(
        self,
        model_output: ModelOutput,
        step: Step,
        states: Mapping[int, SamplerState],
        draws: dict[int, DeviceDraw],
        edits: Sequence[tuple[int, LogitEdits]],
    ) -> "SampledTokens":
        """Launch the program for these draws. Takes random numbers, and notes in `draws` how many."""
        every = [draw.options for draw in draws.values()]
        arrays = self._fill_options(draws, int(model_output.argmax_handle.shape[0]))
        if edits:
            arrays |= fill_edits(edits)
        top_logprobs = max(options.top_logprobs for options in every)
        if top_logprobs:
            arrays["scored_rows"] = pad([draw.row for draw in draws.values() if draw.options.top_logprobs], 0)
        program = SamplingProgram(
            max(options.candidates for options in every),
            any(options.needs_sums for options in every),
            bool(edits),
            "mask_words" in arrays,
            top_logprobs,
        )
        extents = {symbol: len(arrays[name]) for symbol, name in EXTENTS.items() if name in arrays}
        inputs = {"greedy": model_output.argmax_handle, "logits": model_output.logits_handle, **arrays}
        outputs = dict(self._plan(program).launch(inputs, extents))
        tokens = outputs.pop("tokens")
        fetches = {name: self.backend.start_fetch(handle) for name, handle in outputs.items()}
        sampled = SampledTokens(self, model_output, step, states, draws, tokens, fetches)
        for request, draw in draws.items():
            if draw.num_taken:
                self.num_ahead[request] = self.num_ahead.get(request, 0) + draw.num_taken
        self.unfinished.append(sampled)
        return sampled

    def forget(self) -> None:
        """Forget the launches that are not finished. Returns their random numbers: the requests may go on."""
        for sampled in self.unfinished:
            sampled.return_numbers(sampled.draws.keys() - sampled.discarded)
        self.unfinished.clear()
        self.num_ahead.clear()

    def close(self) -> None:
        """Free the programs."""
        for plan in self.plans.values():
            plan.close()
        self.plans.clear()

    def _plan(self, program: SamplingProgram) -> Plan:
        if program not in self.plans:
            self.plans[program] = Plan(program.trace(self.vocab, self.max_rows), self.backend)
        return self.plans[program]

    def _options(self, state: SamplerState) -> DeviceOptions | None:
        """Return a request's options for the device, made once; None if the host samples."""
        if state.device_options is None:
            state.device_options = (make_device_options(state.sampling, self.vocab),)
        return state.device_options[0]

    def _fill_options(self, draws: dict[int, DeviceDraw], num_rows: int) -> dict[str, np.ndarray]:
        """Return the options of each output row, and masks. Takes random numbers, and notes how many."""
        rows = [ARGMAX] * num_rows
        masked: list[MaskedDraw] = []
        constraints = [draw.state.constraint for draw in draws.values() if draw.state.constraint is not None]
        masks = iter(collect_words(constraints, -(-self.vocab // 32)))
        for request, (state, options, row, _) in draws.items():
            columns, constraint, num_taken = options.columns, state.constraint, 0
            words = next(masks) if constraint is not None else None
            rows[row] = (*columns, 0.0) if constraint is None else GREEDY
            # The host draws without the mask first, where nothing else changes the logits.
            is_free = options.is_drawn and (constraint is None or state.can_draw_first)
            if is_free:
                rows[row] = (*columns, state.next_uniform())
                num_taken += 1
            if words is not None:
                second = (*columns, state.next_uniform() if options.is_drawn else 0.0)
                num_taken += options.is_drawn
                masked.append(MaskedDraw(row, is_free, second, words))
            if num_taken:
                draws[request] = DeviceDraw(state, options, row, num_taken)
        arrays: dict[str, np.ndarray] = {"options": np.array(rows, np.float32)}
        return arrays | fill_masks(masked, -(-self.vocab // 32)) if masked else arrays


def needs_history(state: SamplerState) -> bool:
    """Return whether a request's next draw depends on its last token, beyond the logits: processors, a constraint."""
    return bool(state.processors)


def make_device_options(sampling: Sampling, vocab: int) -> DeviceOptions | None:
    """Return the options of a request for the device; None if its sampler is rare, or an option extreme."""
    top_logprobs = 0
    if sampling.logprobs is not None:
        top_logprobs = min(next(size for size in TOP_LOGPROBS if sampling.logprobs <= size), vocab)
    if sampling.dry_multiplier:
        return None
    if sampling.temperature == 0:
        return DeviceOptions(GREEDY[:4], False, 0, False, top_logprobs)
    top_k = sampling.top_k if sampling.top_k < vocab else 0
    is_rare = sampling.mirostat or sampling.typical_p < 1 or sampling.xtc_probability
    if is_rare or top_k > CANDIDATES[-1] or sampling.temperature < MIN_TEMPERATURE:
        return None
    top_p = np.float32(sampling.top_p)
    if sampling.top_p < 1 and top_p == 1:  # a filter stays one
        top_p = np.nextafter(np.float32(1), np.float32(0))
    min_score = log(max(sampling.min_p, TINY)) if sampling.min_p > 0 else -inf
    candidates = 0
    if top_k or sampling.top_p < 1 or sampling.min_p > 0:
        needed = top_k + TIES if top_k else CANDIDATES[-1]
        candidates = min(next((size for size in CANDIDATES if needed <= size), CANDIDATES[-1]), vocab)
    needs_sums = top_k == 0 and (sampling.top_p < 1 or sampling.min_p == 0)
    columns = (sampling.temperature, float(top_k), float(top_p), min_score)
    return DeviceOptions(columns, True, candidates, needs_sums, top_logprobs)


class SamplingResult(NamedTuple):
    """The arrays of a step's sampling that the host has read, and the checks that they settle.

    greedy     the argmax of each output row, -1 for NaN
    draws      the result of `ops.draw_tokens`, or of `ops.choose_allowed`, for each output row
    tokens     the tokens of each sequence; those of requests with a state are added by the checks
    on_device  the checks whose tokens the device has drawn for certain
    on_host    the other checks, with `logits` of their output rows `rows`
    logprobs   log probabilities and the ids of the likeliest, by output row
    """

    greedy: list[int]
    draws: list[list[int]]
    tokens: list[list[int]]
    on_device: list[DraftCheck]
    on_host: list[DraftCheck]
    rows: list[int]
    logits: Floats | None
    logprobs: dict[int, tuple[Floats, Ints]]


class SampledTokens:
    """The tokens of one step, on the device. `finish` fetches them.

    tokens      handle of int32 [rows]: the token of each output row, for the next step's input; -1 for NaN
    corrected   after `finish`, the ids of requests whose token is not the one in `tokens`, or that have more of them
    discarded   the ids of requests for which `finish` returns no token
    """

    def __init__(
        self,
        sampler: DeviceSampler,
        model_output: ModelOutput,
        step: Step,
        states: Mapping[int, SamplerState],
        draws: Mapping[int, DeviceDraw],
        tokens: Handle,
        fetches: Mapping[str, Fetch],
    ) -> None:
        self.sampler, self.model_output, self.step, self.states = sampler, model_output, step, states
        self.draws, self.tokens, self.fetches = draws, tokens, fetches
        self.greedy: Fetch = sampler.backend.start_fetch(model_output.argmax_handle)
        self.corrected: set[int] = set()
        self.discarded: set[int] = set()
        self._result: SamplingResult | None = None

    def cancel_draws(self, requests: Collection[int]) -> None:
        """Make the states of some requests those before the launch. To be called before the next step is launched,
        which takes the same random numbers."""
        self.discarded.update(requests)
        self.return_numbers(requests)

    def return_numbers(self, requests: Collection[int]) -> None:
        """Return the random numbers that were taken for some requests to their generators."""
        for request in requests:
            draw = self.draws.get(request)
            if draw is not None and draw.num_taken:
                draw.state.rewind(draw.num_taken)
                self._release(request, draw.num_taken)

    def read(self) -> None:
        """Wait for all that `finish` needs. Changes no state: after a failure the requests can be computed again."""
        greedy: list[int] = self.greedy.result().tolist()
        draws: list[list[int]] = self.fetches["draws"].result().tolist() if self.draws else []
        tokens, checks = begin_checks(self.states, greedy, self.step)
        on_device, on_host = list[DraftCheck](), list[DraftCheck]()
        for check in checks:
            if check.request not in self.discarded:
                (on_device if self._is_settled(check, greedy, draws) else on_host).append(check)
        rows = [row for check in on_host for row in range(check.row, check.row + len(check.draft) + 1)]
        logits = self.model_output.rows(rows) if rows else None
        self._result = SamplingResult(greedy, draws, tokens, on_device, on_host, rows, logits, self._read_logprobs())

    def _is_settled(self, check: DraftCheck, greedy: Sequence[int], draws: Sequence[Sequence[int]]) -> bool:
        """Return whether the device has drawn a request's token for certain."""
        if check.request not in self.draws or greedy[check.row] == NOT_A_TOKEN:
            return False
        token, is_certain = draws[check.row][:2]
        return bool(is_certain) and token != NOT_A_TOKEN

    def finish(self) -> SamplerOutput:
        """Wait for the tokens, and return what `Sampler.sample` returns. Changes the states."""
        if self._result is None:
            self.read()
        result = self._result
        assert result is not None
        if self in self.sampler.unfinished:
            self.sampler.unfinished.remove(self)
        for request, launched in self.draws.items():
            if request not in self.discarded:
                self._release(request, launched.num_taken)
        output = SamplerOutput(result.tokens, {}, {}, set(), {})
        for check in result.on_device:
            draw = self.draws[check.request]
            token, _, *is_replaced = result.draws[check.row]
            if draw.num_taken == 2 and not is_replaced[0]:
                draw.state.rewind(1)
            self._accept(check, token, result.logprobs, output)
        num_uncertain = sum(
            check.request in self.draws and result.greedy[check.row] != NOT_A_TOKEN for check in result.on_host
        )
        self.sampler.num_draws += len(result.on_device) + num_uncertain
        self.sampler.num_uncertain += num_uncertain
        if result.logits is not None:
            self._sample_on_host(result, result.logits, output)
        return output

    def _accept(
        self, check: DraftCheck, token: int, logprobs: Mapping[int, tuple[Floats, Ints]], output: SamplerOutput
    ) -> None:
        """Note the token of a certain draw. Changes the state."""
        check.sampled.append(token)
        check.state.accept(token)
        count = check.state.sampling.logprobs
        if count is not None:
            values, ids = logprobs[check.row]
            is_number = not isnan(values[0])
            top = zip(ids[:count].tolist(), values[1 : 1 + count].tolist(), strict=True) if is_number else ()
            output.logprobs.setdefault(check.request, []).append(TokenLogprobs(float(values[0]), dict(top)))
        continue_check(check, output)

    def _sample_on_host(self, result: SamplingResult, logits: Floats, output: SamplerOutput) -> None:
        """Sample the tokens that are left from rows of logits, with the random numbers that the launch had taken."""
        moved: list[DraftCheck] = []
        row = 0
        for check in result.on_host:
            draw = self.draws.get(check.request)
            num_taken = draw.num_taken if draw is not None else 0
            check.state.rewind(num_taken + self.sampler.num_ahead.get(check.request, 0))
            moved.append(check._replace(row=row))
            row += len(check.draft) + 1
        run_checks(moved, [result.greedy[row] for row in result.rows], logits, output)
        for check in result.on_host:
            check.state.rewind(-self.sampler.num_ahead.get(check.request, 0))
            token = result.draws[check.row][0] if check.request in self.draws else None
            if check.sampled != [token]:
                self.corrected.add(check.request)

    def _read_logprobs(self) -> dict[int, tuple[Floats, Ints]]:
        """Return the log probabilities and the ids of the likeliest, by output row."""
        if "logprobs" not in self.fetches:
            return {}
        scored = [draw.row for draw in self.draws.values() if draw.options.top_logprobs]
        values, ids = (self.fetches[name].result() for name in ("logprobs", "top_ids"))
        return {row: (values[at], ids[at]) for at, row in enumerate(scored)}

    def _release(self, request: int, num_taken: int) -> None:
        """Forget the random numbers that this step had taken ahead."""
        num_ahead = self.sampler.num_ahead.pop(request, 0) - num_taken
        if num_ahead > 0:
            self.sampler.num_ahead[request] = num_ahead


def bucket_of(count: int) -> int:
    """Return the number to which this number of things is padded."""
    return max(SMALLEST_BUCKET, 1 << (count - 1).bit_length())


def pad(values: Sequence[Any], filler: Any) -> Ints:
    """Return numbers as int32, padded to a bucket."""
    padded: Ints = np.array([*values, *[filler] * (bucket_of(len(values)) - len(values))], np.int32)
    return padded


def fill_edits(edits: Sequence[tuple[int, LogitEdits]]) -> dict[str, np.ndarray]:
    """Return the arrays of edits, given with their rows, padded by the first one."""
    tokens = np.concatenate([edit.tokens for _, edit in edits])
    count = len(tokens)
    places, values = np.empty((bucket_of(count), 2), np.int32), np.empty((bucket_of(count), 3), np.float32)
    places[:count, 0] = np.repeat([row for row, _ in edits], [len(edit.tokens) for _, edit in edits])
    places[:count, 1] = tokens
    values[:count] = np.concatenate([edit.values for _, edit in edits])
    places[count:], values[count:] = places[0], values[0]
    return {"edit_places": places, "edits": values}


def fill_masks(masked: Sequence[MaskedDraw], num_words: int) -> dict[str, np.ndarray]:
    """Return the arrays of masked draws, padded by masks of row 0 whose draws are not used."""
    size = bucket_of(len(masked))
    words, options = np.zeros((size, num_words), np.int32), np.tile(np.array(GREEDY, np.float32), (size, 1))
    places = np.full((size, 2), (-1, 0), np.int32)
    for at, draw in enumerate(masked):
        count = min(num_words, len(draw.words))
        words[at, :count] = draw.words[:count]
        places[at], options[at] = (draw.row, draw.is_second), draw.options
    rows = pad([draw.row for draw in masked], 0)
    return {"masked_rows": rows, "mask_words": words, "mask_places": places, "mask_options": options}
