"""One random configuration from end to end: transformers builds and saves the model, both sides run the folder."""

import copy
import json
import re
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import numpy as np

from config_draws.fields import default_of, draw_shape, draw_value, drawable
from config_draws.forms import FORMS, rewritten
from encoder_files import TOKENIZERS, wordpieces
from families import EVERY, WHOLE
from hf_folders import tokenizer_json, write_tokenizer
from sporelm.engine.encoding import EncoderRunner, Text
from sporelm.errors import SporeError, UnsupportedModel
from sporelm.models import Encoder, build, open_model
from sporelm.models.families import FAMILIES
from sporelm.models.wrapped import WHOLES
from sporelm.weights.beside_vision import OTHERS
from sporelm.weights.load import load_parameters
from sporelm.weights.names import ignorable
from stepping import Stepper

TOKENS = 40
LOWEST_ID = 6  # ids below it are padding in some classes
MOST_PARAMETERS = 3_000_000
MOST_LAYERS = 8
TOLERANCE = 1e-4  # of the range of the reference's values
MOST_TIED = 2  # rows of TOKENS
UNSTABLE = 2e-5  # likewise: a model whose float32 and float64 results differ by more is not compared
# Class -> class whose base configuration it has too, where the families' test cases have none of its own.
LIKE = {
    "AlbertForMaskedLM": "AlbertModel",
    "AlbertForPreTraining": "AlbertModel",
    "BertForMaskedLM": "BertModel",
    "BertForPreTraining": "BertModel",
    "CamembertForMaskedLM": "CamembertModel",
    "DebertaV2ForMaskedLM": "DebertaV2Model",
    "DistilBertForMaskedLM": "DistilBertModel",
    "ElectraForMaskedLM": "ElectraModel",
    "ElectraForPreTraining": "ElectraModel",
    "ErnieForMaskedLM": "ErnieModel",
    "ErnieForPreTraining": "ErnieModel",
    "EuroBertForMaskedLM": "EuroBertModel",
    "GteForMaskedLM": "GteModel",
    "JinaEmbeddingsV3ForMaskedLM": "JinaEmbeddingsV3Model",
    "MPNetForMaskedLM": "MPNetModel",
    "MistralForCausalLM": "LlamaForCausalLM",
    "MegatronBertForMaskedLM": "MegatronBertModel",
    "ModernBertForMaskedLM": "ModernBertModel",
    "NomicBertForMaskedLM": "NomicBertModel",
    "RobertaForMaskedLM": "RobertaModel",
    "XLMRobertaForMaskedLM": "XLMRobertaModel",
    "XLMRobertaXLForMaskedLM": "XLMRobertaXLModel",
}
# A class with a tower that sees, whose text model alone is compared -> the class with the text model's configuration.
SEEING = {
    "CohereCompassForConditionalGeneration": "CohereCompassForCausalLM",
    "Gemma3ForConditionalGeneration": "Gemma3ForCausalLM",
    "Gemma3nForConditionalGeneration": "Gemma3nForCausalLM",
    "Gemma4ForConditionalGeneration": "Gemma4ForCausalLM",
    "Gemma4UnifiedForConditionalGeneration": "Gemma4UnifiedForCausalLM",
    "Llama4ForConditionalGeneration": "Llama4ForCausalLM",
    "Mistral3ForConditionalGeneration": "Ministral3ForCausalLM",
    "Qwen3_5ForConditionalGeneration": "Qwen3_5ForCausalLM",
    "Qwen3_5MoeForConditionalGeneration": "Qwen3_5MoeForCausalLM",
}
TOWER = {"depth": 1, "num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 16, "image_size": 28}
TOWER |= {"vision_output_dim": 16, "projector_input_dim": 16, "projector_output_dim": 16}
TOWER |= {"patch_size": 14, "num_attention_heads": 2, "num_heads": 2, "deepstack_visual_indexes": []}
GENERAL_KEYS = {"type", "model_type", "architectures", "dtype", "name_or_path", "torch_dtype", "transformers_version"}


@dataclass
class Result:
    """What came of one draw.

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


def bases() -> dict[str, list[dict[str, Any]]]:
    """Small configurations that work, by class: those of the families' test cases."""
    import transformers

    found: dict[str, list[dict[str, Any]]] = {}
    for case in (*EVERY, *WHOLE):
        name = case.config["architectures"][0]
        if not case.numpy and hasattr(transformers, name):
            found.setdefault(name, []).append(case.config)
    for name, other in LIKE.items():
        found.setdefault(name, []).extend(found.get(other, []))
    for name, other in SEEING.items():
        kind = getattr(transformers, name).config_class
        found.setdefault(name, []).extend(_seeing(kind, config) for config in found.get(other, []))
    return {name: configs for name, configs in found.items() if configs}


def _seeing(kind: Any, text: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a class with towers around a text model, as small as its classes allow."""
    inner = {key: value for key, value in text.items() if key != "architectures"}
    outer: dict[str, Any] = {"model_type": kind.model_type, "text_config": inner}
    outer["tie_word_embeddings"] = inner.pop("tie_word_embeddings", False)
    for name, specs in kind.sub_configs_defaults.items():
        if name != "text_config":
            part = specs.config_class
            part = specs.get_config_class(specs.model_type) if part.__name__ == "AutoConfig" else part
            known = {each.name for each in fields(part)}
            outer[name] = {key: value for key, value in TOWER.items() if key in known} | {"model_type": part.model_type}
            outer[name] |= {"out_hidden_size": inner["hidden_size"]} if "out_hidden_size" in known else {}
    return outer


def classes() -> list[str]:
    """The classes that transformers has and this package reads."""
    import transformers

    names = {name for family in FAMILIES for name in family.names[1:]} | set(WHOLES)
    return sorted(name for name in names if hasattr(transformers, name))


def draw(name: str, index: int, gguf: bool = False, tries: int = 60) -> Result:
    """Draw configurations of a class until transformers runs one, and compare it."""
    choices = bases()[name]
    discarded, last = 0, ""
    for attempt in range(tries):
        random = Random(f"{name} {index} {attempt}")
        base = copy.deepcopy(choices[random.randrange(len(choices))])
        most = max(0, 6 - attempt // 6)
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            try:
                form, changes, expected, model = _reference(random, name, base, most, folder)
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


class Discard(Exception):
    """The configuration is not compared."""


def _reference(
    random: Random, name: str, base: dict[str, Any], most: int, folder: Path
) -> tuple[str, dict[str, Any], np.ndarray, Any]:
    import torch
    import transformers

    kind: Any = getattr(transformers, name)
    base["architectures"] = [name]
    nested = "text_config" if isinstance(base.get("text_config"), dict) else ""
    inner = base[nested] if nested else base
    inner_class = _text_class(kind.config_class, inner) if nested else kind.config_class
    changes = _draw_changes(random, inner_class, inner, most)
    inner |= changes
    for role, token in (("bos_token_id", 1), ("eos_token_id", 2)):
        inner[role] = token
    inner.setdefault("pad_token_id", 0)
    config = kind.config_class(**{key: value for key, value in base.items() if key != "model_type"})
    _check_size(kind, config, torch)
    model = kind(config).eval()
    _fill(model, random.random())
    model.save_pretrained(folder)
    path = folder / "config.json"
    saved = json.loads(path.read_text())
    saved["architectures"] = [name]
    form = random.choice(FORMS)
    held = saved[nested] if nested else saved
    defaults = {each.name: default_of(inner_class, each.name) for each in fields(inner_class)}
    held = rewritten(random, form, held, defaults, getattr(inner_class, "attribute_map", {}))
    saved = saved | {nested: held} if nested else held
    path.write_text(json.dumps(saved, indent=1))
    again, expected = _run_transformers(name, folder, torch.float32)
    return form, changes, expected, again


def _text_class(outer: Any, inner: dict[str, Any]) -> Any:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    declared = outer.sub_configs.get("text_config")
    if declared is not None and declared.__name__ != "AutoConfig":
        return declared
    kind = inner.get("model_type") or outer.sub_configs_defaults["text_config"].model_type
    return CONFIG_MAPPING[kind]


def _draw_changes(random: Random, config_class: Any, base: dict[str, Any], most: int) -> dict[str, Any]:
    names, found = drawable(config_class, base), dict[str, Any]()
    if most and random.random() < 0.35:
        found |= draw_shape(random, config_class, base)
    for name in random.sample(names, min(len(names), random.randint(0, most))):
        found[name] = draw_value(random, config_class, name, base | found)
    if most and random.random() < 0.3 and "rope_parameters" in names and "rope_parameters" not in found:
        base.pop("rope_scaling", None)
        found["rope_parameters"] = draw_value(random, config_class, "rope_parameters", base | found)
    return found


def _check_size(kind: Any, config: Any, torch: Any) -> None:
    text = config.get_text_config(decoder=True)
    if (getattr(text, "num_hidden_layers", 1) or 1) > MOST_LAYERS:
        raise Discard("too many layers")
    with torch.device("meta"):
        count = sum(each.numel() for each in kind(config).parameters())
    if count > MOST_PARAMETERS:
        raise Discard(f"{count} parameters")


def _fill(model: Any, salt: float) -> None:
    """Random values for each tensor, by its name: vectors around one, biases around zero, matrices by their width."""
    import torch

    learned = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if not tensor.is_floating_point() or not (name in learned or "bias" in name):
                continue  # other buffers follow from the configuration
            random = np.random.RandomState(crc32(f"{salt} {name}".encode()))
            values = random.random_sample(tuple(tensor.shape))
            if tensor.ndim <= 1:
                values = (0.0 if "bias" in name.rpartition(".")[2] else 1.0) + 0.4 * (values - 0.5)
            else:
                values = (values * 2 - 1) * np.sqrt(3 / tensor.shape[-1])
            tensor.copy_(torch.from_numpy(np.asarray(values, np.float32)))


def is_encoder(name: str) -> bool:
    """Whether the package computes embeddings or scores with a class, not logits of the next token."""
    family = next((each for each in FAMILIES if name in each.names), None)
    return family is not None and "encoder" in family.title.lower()


def _ids(name: str, vocab: int) -> list[int]:
    return np.random.RandomState(crc32(name.encode())).randint(LOWEST_ID, vocab, TOKENS).tolist()


def _run_transformers(name: str, folder: Path, dtype: Any) -> tuple[Any, np.ndarray]:
    """The model that transformers reads from the folder, and float32 [rows, values] of what it computes."""
    import torch
    import transformers
    from transformers import AutoModel

    values = json.loads((folder / "config.json").read_text())
    encoder = is_encoder(name)
    scores = name.endswith("ForSequenceClassification")
    kind: Any = getattr(transformers, name)
    if encoder and not scores and not name.endswith("EncoderModel"):
        kind = AutoModel
    plain: dict[str, Any] = {"attn_implementation": "sdpa" if values.get("alibi") else "eager", "dtype": dtype}
    config = getattr(transformers, name).config_class.from_pretrained(folder)
    text = config.get_text_config()
    if (getattr(text, "num_hidden_layers", 1) or 1) > MOST_LAYERS:
        raise Discard("too many layers")
    for key in ("num_experts", "num_local_experts", "n_routed_experts"):
        if isinstance(getattr(text, key, None), int):
            plain["experts_implementation"] = "eager"
    model, info = kind.from_pretrained(folder, output_loading_info=True, **plain)
    unread = ignorable(info["missing_keys"], "hf", OTHERS)
    missing = {key for key in set(info["missing_keys"]) - unread if "pooler" not in key}
    surplus = set() if encoder else set(info["unexpected_keys"])  # encoders: of heads that fill gaps
    if missing or surplus or info["mismatched_keys"]:
        raise Discard(f"the rewritten config.json asks for other tensors: {sorted(missing | surplus)[:3]}")
    vocab = getattr(text, "vocab_size", 0)
    ids = torch.tensor([_ids(name, vocab)])
    with torch.no_grad():
        result = model.eval()(input_ids=ids)
    if scores:
        found = result.logits
    else:
        found = result.last_hidden_state[0] if encoder else result.logits[0]
    array = found.double().numpy()
    if not np.isfinite(array).all():
        raise Discard("not finite")
    if not scores and float(np.ptp(array)) < 1e-3:
        raise Discard("constant")
    return model, array


def run_ours(path: Path, name: str, backend: Any) -> np.ndarray:
    """What this package computes of the same ids, from a folder or a GGUF file."""
    source = open_model(path)
    try:
        model = build(source.config)
        weights = load_parameters(source, model.params(), backend)
    finally:
        source.close()
    ids = _ids(name, source.config.vocab)
    if isinstance(model, Encoder):
        tables = model.tables(TOKENS) | model.learned_tables(weights, TOKENS)
        learned = model.learned_weights(weights)
        weights = dict(weights) | {key: backend.tensor(table) for key, table in tables.items()}
        weights |= {key: backend.pack(each) for key, each in learned.items()}
        runner = EncoderRunner(model, weights, backend, most_tokens=600, most_texts=4, eager=True)
        found = runner.embed([Text(ids)]) if runner.model.classifier is None else runner.score([Text(ids)])
        result = np.array(found[0])
        runner.close()
        return result if result.ndim == 2 else result[None]
    stepper = Stepper(model, weights, backend, context=TOKENS, eager=True)
    result = stepper.logits(ids)
    stepper.close()
    return result


_BACKENDS: list[Any] = []


def backend() -> Any:
    from sporelm.backends.registry import open_backend

    if not _BACKENDS:
        _BACKENDS.append(open_backend("cpu", threads=1))
    return _BACKENDS[0]


def _compared(name: str, index: int, folder: Path, expected: np.ndarray, model: Any, gguf: bool) -> Result:
    config = json.loads((folder / "config.json").read_text())
    found = Result(name, index, "equal", config=config)
    try:
        ours = run_ours(folder, name, backend())
    except SporeError as reason:
        found.message = str(reason)
        found.verdict = "refused" if named_keys(found.message, config, model) else "nameless"
        return found
    except Exception:
        found.verdict, found.message = "crash", traceback.format_exc()[-500:]
        return found
    ours = _without_ties(config, ours, expected)
    found.error = distance(ours, expected)
    if not found.error <= TOLERANCE:
        exact = _run_transformers(name, folder, __import__("torch").float64)[1]
        if distance(expected, exact) > UNSTABLE and distance(ours, exact) < 20 * distance(expected, exact):
            return Result(name, index, "discarded", message="unstable in float32")
        found.verdict, found.message = "different", f"{found.error:.3g} of the range"
        return found
    if gguf:
        found.gguf = _through_gguf(name, folder, ours, config)
        if found.gguf.startswith("different") or found.gguf.startswith("crash"):
            found.verdict = "gguf"
    return found


def _without_ties(config: dict[str, Any], ours: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Our logits, a few rows replaced by the reference's where an indexer chooses among scores that are exactly zero:
    which of them it takes is the sort's affair."""
    if "index_topk" not in config or ours.shape != expected.shape:
        return ours
    far = np.abs(ours - expected).max(axis=1) > TOLERANCE * np.ptp(expected)
    return np.where(far[:, None], expected, ours) if far.sum() <= MOST_TIED else ours


def distance(ours: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference as a share of the reference's range; infinite for another shape or what is not finite."""
    if ours.shape != expected.shape or not np.isfinite(ours).all():
        return float("inf")
    span = float(np.ptp(expected)) if len(expected) > 1 else max(1.0, float(np.abs(expected).max()))
    return float(np.abs(ours - expected).max() / span)


def _through_gguf(name: str, folder: Path, ours: np.ndarray, config: dict[str, Any]) -> str:
    from sporelm.tools.hf.from_hf import from_hf
    from sporelm.tools.output import Output, save

    try:
        source = open_model(folder)
        vocab = source.config.vocab
        source.close()
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
        save([Output(file, converted.model)])
        there = run_ours(file, name, backend())
    except UnsupportedModel as reason:
        return f"refused: {reason}"
    except Exception:
        return "crash: " + traceback.format_exc()[-500:]
    error = distance(there, ours)
    return "equal" if error <= TOLERANCE else f"different: {error:.3g}"


def named_keys(message: str, config: dict[str, Any], model: Any = None) -> set[str]:
    """The keys of config.json, written there or known to the class, that an error names."""
    known = set(_keys(config))
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
