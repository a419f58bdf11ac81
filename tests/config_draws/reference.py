"""Builds a random model with transformers, saves it, and computes what it makes of the ids in the folder saved."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import numpy as np

from config_draws.bases import is_encoder, text_class
from config_draws.fields import default_of, draw_shape, draw_value, drawable
from config_draws.forms import FORMS, rewritten
from sporelm.checkpoints.tensor_names import find_unread
from sporelm.checkpoints.text_config import MULTIMODAL_TENSORS

TOKENS = 40
LOWEST_ID = 6  # ids below it are padding in some classes
MAX_PARAMETERS = 3_000_000
MAX_LAYERS = 8
DERIVED = ("slope_rate", "query_decay", "key_decay", "diagonal_decay")  # of MiniMax-Text-01, by the configuration
HEADS = ("cls.", "lm_head", "predictions", "pooler", "classifier", "vocab_", "head.", "decoder.bias")  # for training


class Discard(Exception):
    """The configuration is not compared."""


def build_and_run(
    random: Random,
    name: str,
    base: dict[str, Any],
    max_fields: int,
    folder: Path,
    change: dict[str, Any] | None = None,
    form: str = "",
) -> tuple[str, dict[str, Any], np.ndarray, Any]:
    """Build a model of a class with up to `max_fields` fields drawn, or with `change`, and save it to the folder in a
    form of config.json; return that form, the changes, and what transformers computes and has read from the folder.

    Raises Discard, or whatever transformers raises, where it cannot.
    """
    import torch
    import transformers

    kind: Any = getattr(transformers, name)
    base["architectures"] = [name]
    nested = "text_config" if isinstance(base.get("text_config"), dict) else ""
    inner = base[nested] if nested else base
    inner_class = text_class(kind.config_class, inner) if nested else kind.config_class
    changes = draw_changes(random, inner_class, inner, max_fields) if change is None else change
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
    form = form or random.choice(FORMS)
    held = saved[nested] if nested else saved
    defaults = {each.name: default_of(inner_class, each.name) for each in fields(inner_class)}
    held = rewritten(random, form, held, defaults, getattr(inner_class, "attribute_map", {}))
    saved = saved | {nested: held} if nested else held
    path.write_text(json.dumps(saved, indent=1))
    again, expected = run_transformers(name, folder, "float32")
    return form, changes, expected, again


def draw_changes(random: Random, config_class: Any, base: dict[str, Any], max_fields: int) -> dict[str, Any]:
    """Draw values for up to `max_fields` fields of a class; its shape and its rotary positions are drawn more often."""
    names, found = drawable(config_class, base), dict[str, Any]()
    if max_fields and random.random() < 0.35:
        found |= draw_shape(random, config_class, base)
    for name in random.sample(names, min(len(names), random.randint(0, max_fields))):
        found[name] = draw_value(random, config_class, name, base | found)
    if max_fields and random.random() < 0.3 and "rope_parameters" in names and "rope_parameters" not in found:
        base.pop("rope_scaling", None)
        found["rope_parameters"] = draw_value(random, config_class, "rope_parameters", base | found)
    return found


def _check_size(kind: Any, config: Any, torch: Any) -> None:
    text = config.get_text_config(decoder=True)
    if (getattr(text, "num_hidden_layers", 1) or 1) > MAX_LAYERS:
        raise Discard("too many layers")
    with torch.device("meta"):
        count = sum(each.numel() for each in kind(config).parameters())
    if count > MAX_PARAMETERS:
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


def prompt_ids(name: str, vocab: int) -> list[int]:
    """The ids that a class is compared on."""
    return np.random.RandomState(crc32(name.encode())).randint(LOWEST_ID, vocab, TOKENS).tolist()


@contextmanager
def _first_among_equals(index_topk: int | None) -> Iterator[None]:
    """Make indexers take the earlier of equal scores: many scores are exactly zero, and torch leaves the order open."""
    import torch

    if index_topk is None:
        yield
        return
    usual = torch.Tensor.topk

    def topk(self: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
        values, order = torch.sort(self, dim=dim, descending=largest, stable=True)
        return torch.return_types.topk((values.narrow(dim, 0, k), order.narrow(dim, 0, k)))

    torch.Tensor.topk = topk
    try:
        yield
    finally:
        torch.Tensor.topk = usual


def run_transformers(name: str, folder: Path, dtype: str) -> tuple[Any, np.ndarray]:
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
    plain: dict[str, Any] = {"attn_implementation": "eager", "dtype": getattr(torch, dtype)}
    if values.get("alibi"):  # eager attention of Falcon adds linear biases twice
        plain["attn_implementation"] = "sdpa"
    config = getattr(transformers, name).config_class.from_pretrained(folder)
    text = config.get_text_config()
    if (getattr(text, "num_hidden_layers", 1) or 1) > MAX_LAYERS:
        raise Discard("too many layers")
    for key in ("num_experts", "num_local_experts", "n_routed_experts"):
        if isinstance(getattr(text, key, None), int):
            plain["experts_implementation"] = "eager"
    model, info = kind.from_pretrained(folder, output_loading_info=True, **plain)
    unread = find_unread(info["missing_keys"], "hf", MULTIMODAL_TENSORS)
    missing = {key for key in set(info["missing_keys"]) - unread if not key.endswith(DERIVED) and "pooler" not in key}
    surplus = {key for key in info["unexpected_keys"] if not encoder or not any(part in key for part in HEADS)}
    if missing or surplus or info["mismatched_keys"]:
        raise Discard(f"the rewritten config.json asks for other tensors: {sorted(missing | surplus)[:3]}")
    vocab = getattr(text, "vocab_size", 0)
    ids = torch.tensor([prompt_ids(name, vocab)])
    with torch.no_grad(), _first_among_equals(getattr(text, "index_topk", None)):
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
