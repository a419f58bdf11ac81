"""One random configuration from end to end: transformers builds and saves the model, both sides run the folder."""

import copy
import json
import re
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from config_draws.bases import bases, is_encoder, text_class
from config_draws.fields import declared_types, drawable
from config_draws.reference import TOKENS, Discard, build_and_run, prompt_ids, run_transformers
from encoder_files import TOKENIZERS, wordpieces
from hf_folders import tokenizer_json, write_tokenizer
from sporelm.backends.backend_registry import open_backend
from sporelm.checkpoints import open_model
from sporelm.checkpoints.loader import load_parameters
from sporelm.checkpoints.rope_fields import HF_KEYS
from sporelm.engine.encoder_runner import EncoderRunner, EncoderText
from sporelm.errors import SporeError, UnsupportedModel
from sporelm.models import Encoder, build
from sporelm.tools.hf.from_hf import from_hf
from sporelm.tools.output_file import OutputFile, save_models
from stepping import Stepper

TOLERANCE = 1e-4  # of the range of the reference's values
UNSTABLE = 2e-5  # likewise: a model whose float32 and float64 results differ by more is not compared
GENERAL_KEYS = {"type", "model_type", "architectures", "dtype", "name_or_path", "torch_dtype", "transformers_version"}


@dataclass
class Result:
    """The result of one draw.

    verdict  "equal", "refused" by the name of a key, or a fault: "different", "nameless", "crash"; "discarded" where
             transformers cannot build or run it
    """

    name: str
    index: int
    verdict: str
    form: str = ""
    error: float = 0.0
    message: str = ""
    gguf: str = ""
    discarded: int = 0
    changes: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)


def draw(name: str, index: int, gguf: bool = False, tries: int = 60) -> Result:
    """Draw configurations of a class until transformers runs one, and compare it."""
    choices = bases()[name]
    discarded, last = 0, ""
    for attempt in range(tries):
        random = Random(f"{name} {index} {attempt}")
        base = copy.deepcopy(choices[random.randrange(len(choices))])
        max_fields = max(0, 6 - attempt // 6)
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            try:
                form, changes, expected, model = build_and_run(random, name, base, max_fields, folder)
            except Exception as reason:  # whatever transformers raises: the next draw may run
                discarded, last = discarded + 1, f"{type(reason).__name__}: {str(reason)[:200]}"
                continue
            found = _compared(name, index, folder, expected, model, gguf)
        found.form, found.changes, found.discarded = form, changes, discarded
        if found.verdict == "discarded":
            discarded += 1
            last = found.message
            continue
        return found
    return Result(name, index, "discarded", message=last, discarded=discarded)


def single_changes(name: str) -> list[dict[str, Any]]:
    """For each field of a class: 0, 1 (false and true) and null, whatever transformers makes of them."""
    import transformers

    base = bases()[name][0]
    kind = getattr(transformers, name).config_class
    inner = base.get("text_config")
    text = text_class(kind, inner) if isinstance(inner, dict) else kind
    types, found = declared_types(text), list[dict[str, Any]]()
    for key in drawable(text, inner if isinstance(inner, dict) else base):
        declared = types.get(key, "")
        values: list[Any] = [None] if "None" in declared or not declared else []
        if "bool" in declared:
            values += [False, True]
        elif "int" in declared or "float" in declared or not declared:
            values += [0, 1] if "int" in declared or "float" not in declared else [0.0, 1.0]
        found += [{key: value} for value in values]
    return found


def compare_single(name: str, number: int, change: dict[str, Any]) -> Result:
    """Compare a class's first base configuration with one field changed, as transformers saves it."""
    random, base = Random(f"{name} {number}"), copy.deepcopy(bases()[name][0])
    with tempfile.TemporaryDirectory() as place:
        try:
            form, changes, expected, model = build_and_run(random, name, base, 0, Path(place), change, "new")
        except Exception as reason:
            return Result(name, number, "discarded", message=str(reason)[:200], changes=change)
        found = _compared(name, number, Path(place), expected, model, False)
    found.form, found.changes = form, changes
    return found


def run_ours(path: Path, name: str, backend: Any) -> np.ndarray:
    """Compute logits, embeddings or scores of the same ids with this package, from a folder or a GGUF file."""
    source = open_model(path)
    try:
        model = build(source.config)
        weights = load_parameters(source, model.params(), backend)
    finally:
        source.close()
    if source.config.context_length < TOKENS:
        raise Discard("fewer positions than tokens")
    ids = prompt_ids(name, source.config.vocab)
    if isinstance(model, Encoder):
        tables = model.tables(TOKENS) | model.learned_tables(weights, TOKENS)
        learned = model.learned_weights(weights)
        weights = dict(weights) | {key: backend.tensor(table) for key, table in tables.items()}
        weights |= {key: backend.pack(each) for key, each in learned.items()}
        runner = EncoderRunner(model, weights, backend, max_tokens=600, max_texts=4, eager=True)
        texts = [EncoderText(ids)]
        found = runner.embed(texts) if runner.model.classifier is None else runner.score(texts)
        result = np.array(found[0])
        runner.close()
        return result if result.ndim == 2 else result[None]
    stepper = Stepper(model, weights, backend, context=TOKENS, eager=True)
    result = stepper.logits(ids)
    stepper.close()
    return result


@cache
def backend() -> Any:
    """The CPU, with one thread."""
    return open_backend("cpu", threads=1)


def _compared(name: str, index: int, folder: Path, expected: np.ndarray, model: Any, gguf: bool) -> Result:
    config = json.loads((folder / "config.json").read_text())
    found = Result(name, index, "equal", config=config)
    try:
        ours = run_ours(folder, name, backend())
    except Discard as reason:
        return Result(name, index, "discarded", message=str(reason))
    except SporeError as reason:
        found.message = str(reason)
        found.verdict = "refused" if named_keys(found.message, config, model) else "nameless"
        return found
    except Exception:
        found.verdict, found.message = "crash", traceback.format_exc()[-500:]
        return found
    found.error = distance(ours, expected)
    if not found.error <= TOLERANCE:
        exact = run_transformers(name, folder, "float64")[1]
        if distance(expected, exact) > UNSTABLE and distance(ours, exact) < 20 * distance(expected, exact):
            return Result(name, index, "discarded", message="unstable in float32")
        found.verdict, found.message = "different", f"{found.error:.3g} of the range"
        return found
    if gguf:
        found.gguf = _through_gguf(name, folder, ours, config)
        if found.gguf.startswith("different") or found.gguf.startswith("crash"):
            found.verdict = "gguf"
    return found


def distance(ours: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest difference over the reference's range; infinity if shapes differ or values are not finite."""
    if ours.shape != expected.shape or not np.isfinite(ours).all():
        return float("inf")
    span = float(np.ptp(expected)) if len(expected) > 1 else max(1.0, float(np.abs(expected).max()))
    return float(np.abs(ours - expected).max() / span)


def _through_gguf(name: str, folder: Path, ours: np.ndarray, config: dict[str, Any]) -> str:
    try:
        source = open_model(folder)
        vocab = source.config.vocab
        source.close()
        roles = ("bos_token_id", "eos_token_id")  # beside a tiny vocabulary
        told = {key: value for key, value in config.items() if key not in roles}
        (folder / "config.json").write_text(json.dumps(told), encoding="utf-8")
        (folder / "generation_config.json").unlink(missing_ok=True)
        if is_encoder(name):
            spec, more = TOKENIZERS.get(config["model_type"], wordpieces)(vocab)
            (folder / "tokenizer.json").write_text(json.dumps(spec), encoding="utf-8")
            (folder / "tokenizer_config.json").write_text(json.dumps(more), encoding="utf-8")
        else:
            write_tokenizer(folder, tokenizer_json(vocab))
        file = folder / "m.gguf"
        converted = from_hf(folder)
        if any("dynamic rope" in note for note in converted.notes):
            return "noted"
        save_models([OutputFile(file, converted.model)])
        there = run_ours(file, name, backend())
    except UnsupportedModel as reason:
        return f"refused: {reason}"
    except Exception:
        return "crash: " + traceback.format_exc()[-500:]
    error = distance(there, ours)
    return "equal" if error <= TOLERANCE else f"different: {error:.3g}"


def named_keys(message: str, config: dict[str, Any], model: Any = None) -> set[str]:
    """The keys of config.json, written there or known to the class, that an error names."""
    known = {*_keys(config), *HF_KEYS, "mrope_section"}
    if model is not None:
        for each in (model.config, model.config.get_text_config()):
            known |= {one.name for one in fields(each)} | set(each.attribute_map) | set(each.attribute_map.values())
    words = set(re.findall(r"[A-Za-z_0-9]+", message.partition("config.json")[2] or message))
    return {key for key in known - GENERAL_KEYS if key in words}


def _keys(values: Any) -> Iterator[str]:
    if isinstance(values, dict):
        for key, value in values.items():
            yield str(key)
            yield from _keys(value)
