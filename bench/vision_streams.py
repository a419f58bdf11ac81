"""Benchmark of text streams beside a picture, and of a second question about the same picture.

Usage: python bench/vision_streams.py [--streams 4] [--size 1024x768] [--threads N] [--repeat 3] [--json]
The model has the shape of SmolVLM-256M and drawn weights. The gap is the time between two tokens of one stream: with
the streams alone, before and after, and while a picture is read: until the first token of its request. The bars of a
picture: p99 of the gaps at most twice that without it; the first token of a second question at most a tenth of the time
of the first one's.
"""

import argparse
import json
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

import numpy as np  # noqa: E402

from drawn_vision import write_drawn_folder  # noqa: E402
from sporelm import LLM  # noqa: E402
from sporelm.engine import Request  # noqa: E402
from sporelm.engine.sampling import Sampling  # noqa: E402
from sporelm.quant import F16  # noqa: E402
from vision_folders import draw_picture, token_ids  # noqa: E402

TOKENS = (
    *("<image>", "<fake_token_around_image>", "<global-img>"),
    *(f"<row_{row}_col_{column}>" for row in range(1, 9) for column in range(1, 9)),
)
SMOLVLM: dict[str, Any] = {
    "architectures": ["SmolVLMForConditionalGeneration"],
    "model_type": "smolvlm",
    "image_token_id": token_ids(TOKENS)["<image>"],
    "scale_factor": 4,
    "tie_word_embeddings": False,
    "text_config": {
        "model_type": "llama",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49280,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100000.0,
    },
    "vision_config": {
        "model_type": "smolvlm_vision",
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "image_size": 512,
        "patch_size": 16,
    },
}
SETTINGS = {
    "image_processor_type": "SmolVLMImageProcessor",
    "size": {"longest_edge": 2048},
    "max_image_size": {"longest_edge": 512},
    "do_image_splitting": True,
}


def measure(llm: LLM, num_streams: int, size: tuple[int, int], seed: int) -> dict[str, float]:
    """Return the gaps of the streams alone and beside a picture, and the times to first tokens, in seconds."""
    engine = llm.engine

    def request(ids: list[int], max_tokens: int) -> Request:
        return Request(ids, sampling=Sampling(temperature=0.0), max_tokens=max_tokens)

    streams = [engine.add(request([70 + number] * 32, 4000)) for number in range(num_streams)]
    while any(stream.num_generated < 8 for stream in streams):
        engine.step()

    def follow(until: Any) -> list[float]:
        gaps, last = list[float](), perf_counter()
        counts = [stream.num_generated for stream in streams]
        while not until(len(gaps)):
            engine.step()
            if any(stream.num_generated > count for stream, count in zip(streams, counts, strict=True)):
                now = perf_counter()
                gaps.append(now - last)
                last, counts = now, [stream.num_generated for stream in streams]
        return gaps

    alone = follow(lambda count: count >= 150)
    picture = draw_picture(*size, seed=seed)
    prompts = [llm.prompt_with_images(f"<image>Question {number}?", [picture]) for number in (1, 2)]
    seen = engine.add(request(prompts[0], 4))
    began = perf_counter()
    beside = follow(lambda count: seen.num_generated > 0)
    first_beside = perf_counter() - began
    engine.cancel(seen)
    alone += follow(lambda count: count >= 150)  # longer contexts take longer: half of the gaps are from each end
    for each in streams:
        engine.cancel(each)

    def first_token(ids: list[int]) -> float:
        began, each = perf_counter(), engine.add(request(ids, 1))
        engine.run([each])
        return perf_counter() - began

    other = draw_picture(*size, seed=seed + 1000)
    quiet = [first_token(llm.prompt_with_images(f"<image>Question {number}?", [other])) for number in (1, 2)]
    return {
        "gap_p99_alone": float(np.percentile(alone, 99)),
        "gap_p99_beside": float(np.percentile(beside, 99)),
        "gap_p50_alone": median(alone),
        "gap_p50_beside": median(beside),
        "gaps_beside": len(beside),
        "rows": sum(image.num_rows for image in getattr(prompts[0], "images", ())),
        "first_token_beside": first_beside,
        "first_token": quiet[0],
        "first_token_again": quiet[1],
    }


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--size", default="1024x768")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    width, height = map(int, args.size.split("x"))
    with TemporaryDirectory() as place:
        folder = write_drawn_folder(
            Path(place), SMOLVLM, TOKENS, "<image>", {"preprocessor_config.json": SETTINGS}, F16
        )
        with LLM(folder, threads=args.threads, max_context=4096) as llm:
            measure(llm, args.streams, (width, height), 500)  # compiles what it needs
            runs = [measure(llm, args.streams, (width, height), number) for number in range(args.repeat)]
    rows = {name: median(run[name] for run in runs) for name in runs[0]}
    rows["gap_ratio"] = median(run["gap_p99_beside"] / run["gap_p99_alone"] for run in runs)
    rows["first_token_ratio"] = median(run["first_token_again"] / run["first_token"] for run in runs)
    if args.json:
        print(json.dumps(rows))
        return
    for name, value in rows.items():
        is_time = name.startswith(("gap_p", "first_token")) and not name.endswith("ratio")
        print(f"{name:20} {value * 1e3:9.1f} ms" if is_time else f"{name:20} {value:9.3g}")


if __name__ == "__main__":
    main()
