"""Compute with one source tree what `compare_base.py` compares: logits, greedy tokens, vectors, written files.

Usage: PYTHONPATH=TREE/src python bench/compare_results.py TREE MODELS ARRAYS planned|eager|files [STORY ...]

It runs with the base commit and with the current source, so it uses what both have: `sporelm.LLM` and the command line.
It prints one line of JSON a result: {"name", "digest", "array"}; `array` is a file with the numbers, if they are few.
The last line is {"cpu_seconds"}.
"""

import argparse
import contextlib
import hashlib
import io
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import sporelm
from sporelm import LLM, SamplingParams
from sporelm.cli.main import main as run_spore
from sporelm.errors import SporeError

CONTEXT = 192
ARRAY_BYTES = 1 << 20  # larger arrays are not kept
GREEDY = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
STORY = SamplingParams(max_tokens=64, temperature=0.0, ignore_eos=True)
TEXTS = ("Once upon a time", "The little dog ran to the")
QUERY, DOCUMENTS = "where is the cat", ["the cat sat on a mat", "no dog", "a long way to the city of ab and cd, e f g"]


def run_command(*words: Any) -> str:
    """Run a `spore` command in this process without its output; its message where it failed, else ""."""
    output = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(output):
        code = run_spore([str(word) for word in words])
    return "" if code == 0 else output.getvalue().strip() or f"exit code {code}"


class Results:
    """Prints results as they come."""

    def __init__(self, arrays: Path) -> None:
        self.arrays, self.count = arrays, 0

    def add(self, name: str, compute: Callable[[], Any]) -> None:
        """Print the digest of an array or of text; of an error its class, since its message may be reworded."""
        array = None
        try:
            value = compute()
        except SporeError as error:
            value = f"refused: {type(error).__name__}"
        except Exception as error:
            value = f"failed: {type(error).__name__}: {error}"
        if isinstance(value, np.ndarray):
            digest = hashlib.sha256(repr((value.dtype.str, value.shape)).encode() + value.tobytes()).hexdigest()
            if value.nbytes <= ARRAY_BYTES:
                array = self.arrays / f"{self.count}.npy"
                np.save(array, value)
                self.count += 1
        else:
            digest = str(value)
        print(json.dumps({"name": name, "digest": digest, "array": str(array) if array else None}), flush=True)


def run_models(root: Path, models: list[dict[str, Any]], results: Results, *, eager: bool) -> None:
    for model in models:
        name, ids = model["name"], model["ids"]
        try:
            llm = LLM(root / model["path"], eager=eager, threads=1, max_context=CONTEXT, max_batch=2)
        except Exception as error:
            results.add(f"{name} load", _raising(error))
            continue
        with contextlib.closing(llm):
            if model["kind"] == "decoder":
                results.add(f"{name} logits", lambda llm=llm, ids=ids: llm.logits(ids))
                results.add(f"{name} greedy", lambda llm=llm, ids=ids: greedy(llm, [ids, ids[:9]], GREEDY))
            elif model["kind"] == "encoder":
                for pooling in ("mean", "cls", "last"):
                    results.add(f"{name} {pooling}", lambda llm=llm, ids=ids, pooling=pooling: embed(llm, ids, pooling))
            else:
                results.add(f"{name} scores", lambda llm=llm: scores(llm))


def run_stories(paths: list[str], results: Results, *, eager: bool) -> None:
    """64 greedy tokens after each of two texts, alone and together, of models with a real vocabulary."""
    for path in paths:
        name = Path(path).parent.name if Path(path).is_file() else Path(path).name
        with contextlib.closing(LLM(path, eager=eager, threads=1, max_context=CONTEXT, max_batch=2)) as llm:
            for text in TEXTS:
                results.add(f"{name} greedy {text!r}", lambda llm=llm, text=text: greedy(llm, [text], STORY))
            results.add(f"{name} greedy together", lambda llm=llm: greedy(llm, list(TEXTS), STORY))
            results.add(f"{name} embed", lambda llm=llm: llm.embed(list(TEXTS), normalize=False))


def greedy(llm: LLM, prompts: list[Any], params: SamplingParams) -> np.ndarray:
    return np.array([completion.token_ids for completion in llm.generate(prompts, params)], np.int64)


def embed(llm: LLM, ids: list[int], pooling: str) -> np.ndarray:
    return np.asarray(llm.embed([ids, ids[:20]], pooling=pooling, normalize=False))


def scores(llm: LLM) -> np.ndarray:
    ranked = llm.rerank(QUERY, DOCUMENTS, normalize=False)
    return np.array([each.score for each in sorted(ranked, key=lambda each: each.index)], np.float64)


def write_files(root: Path, models: dict[str, list[dict[str, Any]]], results: Results) -> None:
    """Digests of what the three tools write from each model."""
    for model in models["run"]:
        path, kind = root / model["path"], model["name"].rpartition(" ")[2]
        if kind == "folder":
            results.add(f"{model['name']} from-hf", lambda path=path: written("m.gguf", "from-hf", path))
        elif kind == "gguf":
            results.add(f"{model['name']} to-hf", lambda path=path: written("m", "to-hf", path))
    for model in models["quantize"]:
        path = root / model["path"]
        for kind in model["types"]:
            words = ("quantize", path, "-t", kind)
            results.add(f"{model['name']} quantize {kind}", lambda words=words: written("m.gguf", *words))


def written(output: str, *words: Any) -> str:
    """The digest of the file or folder that a `spore gguf` command writes."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / output
        message = run_command("gguf", *words, "-o", place)
        if message:
            return (
                f"refused: {message.splitlines()[-1].partition(':')[0] if 'Traceback' in message else 'by the command'}"
            )
        files = sorted(path for path in (place.rglob("*") if place.is_dir() else [place]) if path.is_file())
        digest = hashlib.sha256()
        for path in files:
            digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
        return digest.hexdigest()


def _raising(error: Exception) -> Callable[[], Any]:
    def compute() -> Any:
        raise error

    return compute


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("tree", type=Path)
    parser.add_argument("models", type=Path)
    parser.add_argument("arrays", type=Path)
    parser.add_argument("mode", choices=("planned", "eager", "files"))
    parser.add_argument("stories", nargs="*")
    options = parser.parse_args()
    source = Path(sporelm.__file__).resolve()
    if not source.is_relative_to(options.tree.resolve() / "src"):
        sys.exit(f"{source} was imported in place of the one in {options.tree}")
    shutil.rmtree(options.arrays, ignore_errors=True)
    options.arrays.mkdir(parents=True)
    models = json.loads((options.models / "models.json").read_text())
    results = Results(options.arrays)
    if options.mode == "files":
        write_files(options.models, models, results)
    else:
        run_models(options.models, models["run"], results, eager=options.mode == "eager")
        run_stories(options.stories, results, eager=options.mode == "eager")
    print(json.dumps({"cpu_seconds": time.process_time()}), flush=True)


if __name__ == "__main__":
    main()
