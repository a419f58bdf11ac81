"""Whole models with random weights through the engine.

Usage: PYTHONPATH=src python3 bench/gpu/model.py [--models 8b,1b,30b-a3b] [--formats bf16,q4_0,q4_k,fp8]
       [--figures load,decode,prefill,streams,idle,ngram] [--batch-invariant] [--kv f16] [--json]

load      seconds to check and copy the weights from the host's memory, to prepare (allocate the caches, compile the
          kernels, and capture the graphs of decoding and of short prompts), and until the third token of the first
          request
decode    one stream, tokens a second. `share` is the bytes that a step reads (packed weights without the embedding
          table, keys and values), as a part of the card's read bandwidth in this run
prefill   a prompt of --prompt tokens until its first token. `share` is the operations of the layers' matrices a second,
          as a part of the matmul rate (for fp8 of the fp8 rate)
streams   --streams requests at once with prompts of --stream-prompt tokens and --stream-tokens new tokens each: new
          tokens over the time of all. `share` is the part of the roofline that was reached: of prompts at the matmul
          rate, and then decode steps that read or multiply at the limits of this run
idle      decoding one stream, and 64: the part of the time in which no kernel runs on the device, by torch's profiler.
          `between` counts the gaps between launches alone, not those between the kernels of a graph
ngram     text that repeats: decoding with n-gram speculation over decoding without. The model's layers add zeros, so
          that nearly all drafts are right: the most that speculation can give

1b is Llama 3.2, 8b Llama 3.1, 30b-a3b Qwen 3. In fp8 the head is bf16, else it has the format of the layers. With
--dtype fp8 rows that FP8 weights multiply are rounded to FP8 as well (w8a8).
"""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import harness
from limits import Limits, load_limits, share_of
from random_models import FP8, MODEL_SHAPES, RandomModel, free_device_memory, make_source, open_gpu_backend

from sporelm.engine import Engine, Request

FIGURES = ("load", "decode", "prefill", "streams", "idle", "ngram")
PROMPT = 32  # of a decoding stream, so that all steps have one shape
PROFILED_STEPS = 32
IDLE_STREAMS = (1, 64)


def run_requests(engine: Engine, prompts: Sequence[list[int]], num_tokens: int) -> float:
    """Return the seconds from submitting prompts until each has its new tokens."""
    requests = [Request(prompt, max_tokens=num_tokens) for prompt in prompts]
    began = perf_counter()
    for request in requests:
        engine.add(request)
    engine.run(requests)
    return perf_counter() - began


def decode(engine: Engine, prompt: list[int], num_tokens: int, warm_tokens: int) -> float:
    """Return the seconds of a token of one stream, after `warm_tokens`: a shape is captured when it comes again."""
    request = engine.add(Request(prompt, max_tokens=warm_tokens + num_tokens))
    while request.num_generated < warm_tokens:
        engine.step()
    first = request.num_generated
    began = perf_counter()
    engine.run([request])
    return (perf_counter() - began) / (request.num_generated - first)


class ModelBench:
    """The figures of one model in one number format."""

    def __init__(self, args: argparse.Namespace, report: harness.Report, limits: Limits, name: str, form: str) -> None:
        self.args, self.report, self.limits = args, report, limits
        self.shape, self.form = MODEL_SHAPES[name], form
        self.label = f"{name} {form}" + " w8a8" * (args.dtype == FP8) + " invariant" * args.batch_invariant
        is_fp8 = form == FP8 and limits.fp8_flops
        self.flops = limits.fp8_flops if is_fp8 else limits.bf16_flops
        self.context = max(args.prompt + 64, args.stream_prompt + args.stream_tokens, 512)

    def open(self, *, repeats: bool = False) -> RandomModel:
        """Load the model."""
        source = make_source(self.shape, self.form, repeats=repeats)
        backend = open_gpu_backend(
            self.args.device,
            self.args.dtype,
            batch_invariant=self.args.batch_invariant,
            max_streams=self.args.streams,
            token_budget=self.args.token_budget,
        )
        try:
            return RandomModel(source, backend, context=self.context, streams=self.args.streams, kv=self.args.kv)
        except BaseException:
            backend.close()
            raise

    def run(self) -> None:
        """Add the rows of all figures that are asked for."""
        figures = [figure for figure in self.args.figures if figure != "ngram"]
        if figures:
            self._run_figures(figures)
            free_device_memory(self.args.device)  # once nothing refers to the model
        if "ngram" in self.args.figures:
            self._run_ngram()
            free_device_memory(self.args.device)

    def _run_figures(self, figures: Sequence[str]) -> None:
        """Add the rows of figures that one loaded model serves."""
        opened = None
        with self.report.row(f"{self.label} load") as row:
            opened = self.open()
            row |= self.measure_load(opened)
        if opened is None:
            return
        for figure in figures:
            if figure != "load":
                measure: Callable[[RandomModel], None] = getattr(self, f"measure_{figure}")
                measure(opened)
        opened.close()
        opened.backend.close()

    def _run_ngram(self) -> None:
        with self.report.row(f"{self.label} ngram") as row:
            opened = self.open(repeats=True)
            row |= self.measure_ngram(opened)
            opened.close()
            opened.backend.close()

    def measure_load(self, opened: RandomModel) -> dict[str, Any]:
        """Return the seconds until the model decodes, and its bytes."""
        seconds = run_requests(opened.engine, [opened.random_ids(PROMPT)], 3)
        row = {"s": opened.load_s + opened.prepare_s + seconds, "weights s": opened.load_s}
        row |= {"prepare s": opened.prepare_s, "first tokens s": seconds}
        return row | {"GB": opened.step_work.weight_bytes / 1e9, "streams that fit": self.count_fitting(opened)}

    def count_fitting(self, opened: RandomModel) -> int:
        """Return how many of the streams the pages hold."""
        pages = -(-(self.args.stream_prompt + self.args.stream_tokens) // 64)
        return min(self.args.streams, opened.limits.num_pages // pages)

    def measure_decode(self, opened: RandomModel) -> None:
        with self.report.row(f"{self.label} decode") as row:
            count, warm = self.args.tokens, self.args.warm_tokens

            def decode_random() -> float:
                return decode(opened.engine, opened.random_ids(PROMPT), count, warm)

            decode_random()
            seconds = median(decode_random() for _ in range(self.args.repeat))
            nbytes = opened.step_work.decode_bytes(1, PROMPT + warm + count / 2)
            row |= {"tok/s": 1 / seconds, "GB/s": nbytes / seconds / 1e9, "GB a step": nbytes / 1e9}
            row["share"] = share_of(nbytes / seconds, self.limits.read_bytes_s)

    def measure_prefill(self, opened: RandomModel) -> None:
        tokens = self.args.prompt
        with self.report.row(f"{self.label} prefill {tokens}") as row:

            def prefill() -> float:
                return run_requests(opened.engine, [opened.random_ids(tokens)], 1)

            prefill()
            seconds = median(prefill() for _ in range(self.args.repeat))
            least = opened.step_work.prefill_seconds(tokens, self.flops)
            row |= {"tok/s": tokens / seconds, "TFLOP/s": least * self.flops / seconds / 1e12, "share": least / seconds}

    def measure_streams(self, opened: RandomModel) -> None:
        args = self.args
        streams, prompt, tokens = args.streams, args.stream_prompt, args.stream_tokens
        with self.report.row(f"{self.label} streams {streams}: {prompt} in, {tokens} out") as row:

            def run(count: int) -> float:
                return run_requests(opened.engine, [opened.random_ids(prompt) for _ in range(streams)], count)

            run(min(4, tokens))
            seconds = median(run(tokens) for _ in range(args.stream_repeat))
            first = streams * opened.step_work.prefill_seconds(prompt, self.flops)
            each = opened.step_work.decode_seconds(streams, prompt + tokens / 2, self.limits.read_bytes_s, self.flops)
            row |= {"tok/s": streams * tokens / seconds, "s": seconds, "roofline tok/s": streams * tokens}
            row["roofline tok/s"] /= first + tokens * each
            row["share"] = (first + tokens * each) / seconds

    def measure_idle(self, opened: RandomModel) -> None:
        for streams in sorted({min(each, self.args.streams) for each in IDLE_STREAMS}):
            with self.report.row(f"{self.label} idle, {streams} streams") as row:
                if self.args.device == "cpu":
                    row["skipped"] = "there is no GPU"
                    continue
                row |= profile_decode(opened, streams, self.args.warm_tokens)

    def measure_ngram(self, opened: RandomModel) -> dict[str, Any]:
        """Return the speed with and without speculation, in alternating rounds."""
        speeds: dict[str, list[float]] = {"plain": [], "ngram": []}
        opened.engine.close()
        accepted: list[float] = []
        for number in range(self.args.repeat + 1):  # the first round warms up
            for name, found in speeds.items():
                engine = opened.open_engine(ngram=name == "ngram")
                prompt, count = [*range(PROMPT)] * 2, self.args.ngram_tokens
                seconds = decode(engine, prompt, count, self.args.warm_tokens)
                if number:
                    found.append(1 / seconds)
                if name == "ngram":
                    accepted.append(count_accepted(engine))
                engine.close()
        ratios = [fast / plain for plain, fast in zip(*speeds.values(), strict=True)]
        row = {"tok/s": median(speeds["ngram"]), "plain tok/s": median(speeds["plain"]), "ratio": median(ratios)}
        return row | {"accepted share": median(accepted)}


def count_accepted(engine: Engine) -> float:
    """Return the accepted share of an engine's draft tokens."""
    metrics = engine.metrics
    return metrics.accepted_tokens / max(1, metrics.draft_tokens)


def profile_decode(opened: RandomModel, streams: int, warm_tokens: int) -> dict[str, Any]:
    """Return the device's idle shares while `streams` streams decode."""
    from torch.profiler import ProfilerActivity, profile

    engine = opened.engine
    requests = [
        engine.add(Request(opened.random_ids(PROMPT), max_tokens=3 * warm_tokens + PROFILED_STEPS))
        for _ in range(streams)
    ]
    while min(request.num_generated for request in requests) < warm_tokens:
        engine.step()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        began = perf_counter()
        for _ in range(PROFILED_STEPS):
            engine.step()
        wall = perf_counter() - began
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    for request in requests:
        engine.cancel(request)
    return {**idle_shares(events), "ms a step": wall / PROFILED_STEPS * 1e3}


def idle_shares(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the idle shares of a trace: of all gaps, and of those between launches.

    The kernels of one launched graph have one correlation.
    """
    kinds = ("kernel", "gpu_memcpy", "gpu_memset")
    work = sorted((event for event in events if event.get("cat") in kinds), key=lambda event: event["ts"])
    if len(work) < 2:
        raise ValueError("the profiler recorded no work of the device")
    begin = end = work[0]["ts"]
    gaps = between = 0.0
    last = None
    for event in work:
        correlation = event.get("args", {}).get("correlation")
        gap = max(0.0, event["ts"] - end)
        gaps += gap
        between += gap if correlation != last else 0.0
        end, last = max(end, event["ts"] + event["dur"]), correlation
    span = end - begin
    return {"share": gaps / span, "between share": between / span, "kernels a step": len(work) / PROFILED_STEPS}


def main() -> int:
    parser = harness.make_parser(__doc__)
    parser.add_argument("--models", help="8b,1b,30b-a3b by default")
    parser.add_argument("--formats", help="bf16,q4_0,q4_k,fp8 by default")
    parser.add_argument("--figures", default=",".join(FIGURES))
    parser.add_argument("--dtype", default="bf16", choices=("bf16", "f16", "f32", "fp8"), help="of activations")
    parser.add_argument("--kv", default="f16", choices=("f16", "bf16", "fp8"))
    parser.add_argument("--batch-invariant", action="store_true")
    parser.add_argument("--tokens", type=int, default=128, help="decoded by one stream")
    parser.add_argument("--ngram-tokens", type=int, default=256, help="decoded with speculation, up to 16 a step")
    parser.add_argument("--warm-tokens", type=int, default=16, help="decoded before the clock starts")
    parser.add_argument("--prompt", type=int, default=4096)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--stream-prompt", type=int, default=512)
    parser.add_argument("--stream-tokens", type=int, default=256)
    parser.add_argument("--stream-repeat", type=int, default=1)
    args = parser.parse_args()
    harness.check_device(args)
    args.figures, args.token_budget = args.figures.split(","), None
    if args.tiny:
        args.tokens, args.ngram_tokens, args.prompt, args.token_budget = 2, 8, 65, 128
        args.warm_tokens, args.streams, args.stream_prompt, args.stream_tokens = 1, 2, 8, 2
    report = harness.Report("model", args)
    limits = load_limits(args, report)
    for model in (args.models or ("mini,mini-moe" if args.tiny else "8b,1b,30b-a3b")).split(","):
        for form in (args.formats or ("bf16,q4_0,fp8" if args.tiny else "bf16,q4_0,q4_k,fp8")).split(","):
            ModelBench(args, report, limits, model, form).run()
    return report.finish()


if __name__ == "__main__":
    raise SystemExit(main())
