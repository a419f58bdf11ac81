"""How far the logits of one model on several ranks are from those of one worker, in nat per token.

Usage: python bench/rank_agreement.py [MODEL] [--text TEXT] [--json]

MODEL is what `spore run` takes; SmolLM2 when none is named. Each row compares two of: the CPU back-end (cpu), the numpy
reference (reference), and tensor-parallel ranks in threads (tp2, tp3) or stages (pp2); `float` rows are of weights
dequantized to float32. The reference is slow: a model of 135M takes seconds.
"""

from typing import Any

import numpy as np
from benchmark_script import add_model, find_model, make_parser, print_json, run_script

from sporelm import LLM

TEXT = "The capital of France is Paris. The colour of the sky is blue, and"
RUNS: dict[str, dict[str, Any]] = {
    "cpu": {},
    "reference": {"backend": "reference"},
    "tp2": {"tp": 2, "rank_executor": "threads"},
    "tp3": {"tp": 3, "rank_executor": "threads"},
    "pp2": {"pp": 2, "rank_executor": "threads"},
    "float cpu": {"dequantize": True},
    "float tp2": {"dequantize": True, "tp": 2, "rank_executor": "threads"},
}
PAIRS = [("cpu", name) for name in ("reference", "tp2", "tp3", "pp2")] + [("float cpu", "float tp2")]


def kl_per_row(expected: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Return KL(expected || found) of each row of logits, in nat."""
    logs = []
    for logits in (expected, found):
        shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
        logs.append(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))
    return (np.exp(logs[0]) * (logs[0] - logs[1])).sum(axis=1)


def main() -> int:
    parser = make_parser(__doc__)
    add_model(parser, "smollm2")
    parser.add_argument("--text", default=TEXT, help="text whose tokens are scored; default: two sentences")
    args = parser.parse_args()
    logits, path = {}, find_model(args.model)
    for name, options in RUNS.items():
        with LLM(path, threads=2, max_context=256, **options) as llm:
            logits[name] = np.array(llm.logits(llm.tokenizer.encode(args.text)))
    rows = []
    for first, second in PAIRS:
        kl = kl_per_row(logits[first], logits[second])
        distance = float(np.abs(logits[first] - logits[second]).max())
        rows.append({"pair": f"{first} / {second}", "max_logit": distance, "kl_mean": kl.mean(), "kl_max": kl.max()})
    if args.json:
        return print_json(rows)
    for row in rows:
        kl = f"KL mean {row['kl_mean']:.2e}  max {row['kl_max']:.2e}"
        print(f"{row['pair']:>22}  logits {row['max_logit']:.2e}  {kl}")
    return 0


if __name__ == "__main__":
    run_script(main)
