"""Speed of one model on several ranks of this host against one worker with as many threads, in turns in one run.

Usage: python bench/ranks.py [MODEL] [--ranks 2] [--pp] [--prompt 512] [--tokens 64] [--batch 1,8] [--repeat 5]

MODEL is what `spore bench` takes, also synthetic:SHAPE:FORMAT; default: synthetic:llama-1b:Q4_0. Each rank has
one thread, and the worker as many as there are ranks. Both are loaded at once; the one that waits is asleep. Rows give
the median speed of both and their ratio.
"""

import argparse
from collections.abc import Callable
from statistics import median
from typing import Any

from benchmark_script import add_model, describe_script, find_model, make_parser, print_json, run_script

from sporelm import LLM


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    add_model(parser)
    parser.add_argument("--ranks", type=int, default=2, metavar="N", help="ranks, with one thread each; default: 2")
    parser.add_argument("--pp", action="store_true", help="stages of a pipeline instead of tensor-parallel ranks")
    parser.add_argument("--prompt", type=int, default=512, metavar="N", help="tokens of the prompt; default: 512")
    parser.add_argument("--tokens", type=int, default=64, metavar="N", help="tokens to decode; default: 64")
    parser.add_argument("--batch", default="1,8", metavar="N,..", help="sequences that decode together; default: 1,8")
    parser.add_argument("--repeat", type=int, default=5, metavar="N", help="samples of each; default: 5")
    return parser.parse_args()


def measure(one: LLM, several: LLM, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each test: tokens a second of both, in turns."""
    rows = []
    tests: list[tuple[str, Callable[[LLM], float], int]] = [
        (f"pp{args.prompt}", lambda llm: llm.bench_prefill(args.prompt), args.prompt)
    ]
    for batch in (int(each) for each in args.batch.split(",")):

        def decode(llm: LLM, batch: int = batch) -> float:
            return llm.bench_decode(args.tokens, batch)

        tests.append((f"tg{args.tokens}x{batch}", decode, args.tokens * batch))
    for name, run, count in tests:
        speeds: dict[str, list[float]] = {"one": [], "several": []}
        for number in range(args.repeat + 1):  # the first compiles
            for key, llm in (("one", one), ("several", several)):
                speed = count / run(llm)
                if number:
                    speeds[key].append(speed)
        found = {key: median(values) for key, values in speeds.items()}
        rows.append({"test": name, **found, "ratio": found["several"] / found["one"], "samples": speeds})
    return rows


def main() -> int:
    args = parse_arguments()
    path = find_model(args.model)
    parallel: dict[str, Any] = {"pp": args.ranks} if args.pp else {"tp": args.ranks}
    options: dict[str, Any] = {"threads": args.ranks, "max_context": 1024, "max_batch": 16}
    one = LLM(str(path), **options)
    try:
        several = LLM(str(path), **options, **parallel)
        try:
            rows = measure(one, several, args)
            about = describe_script(one.backend.probe())
        finally:
            several.close()
    finally:
        one.close()
    if args.json:
        return print_json({"about": about, "rows": rows})
    print(f"{args.model}: one worker with {args.ranks} threads / {args.ranks} ranks; {about['machine']}")
    for row in rows:
        print(f"{row['test']:>10}  {row['one']:9.1f}  {row['several']:9.1f} tok/s  ratio {row['ratio']:.3f}")
    return 0


if __name__ == "__main__":
    run_script(main)
