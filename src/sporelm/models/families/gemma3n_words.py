"""How files describe Gemma 3n: what it alone has, and how far its feed-forward blocks are thinned in each layer."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from statistics import NormalDist
from typing import Any

from sporelm.checkpoints.fields import Fields, shown
from sporelm.checkpoints.tensor_names import HF, Kind
from sporelm.checkpoints.windows import windowed
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.models.config import ModelConfig, Scales
from sporelm.models.families import gemma3

STEP = 5  # layers from one without a window to the next, where files do not say
PATTERN, FACTORS = "activation_sparsity_pattern", "activation_sparsity_scale"
THINNED, SHARE = 10, 0.95  # layers, and of their values, where files do not say
ACTIVE, BORROWING, CAP = "altup.active_idx", "attention.shared_kv_layers", "final_logit_softcapping"
LLAMA_CPPS_CAP, LLAMA_CPPS_KEPT = 30.0, 20  # of a file that names none; layers that keep keys and values
FEWEST, WIDTHS = 1e-3, "intermediate_size"  # shares of a row
# Of layers that borrow keys and values: files have them all the same.
_LAYER = "layers.{}.self_attn"
_HF = (f"model.{_LAYER}", f"model.language_model.{_LAYER}", f"language_model.model.{_LAYER}")
UNREAD = (
    *(f"blk.{{}}.attn_{part}.weight" for part in ("k", "v", "k_norm")),
    *(f"{start}.{part}.weight" for start in _HF for part in ("k_proj", "v_proj", "k_norm")),
)


@dataclass(frozen=True)
class Gemma3nParts:
    """What it alone has."""

    inputs: int  # width of the rows that tokens have for each layer
    streams: int = 4  # of a row (AltUp)
    borrowing: int = 0  # layers at the end that read the keys and values of the last one of their kind before them
    rank: int = 64  # of LAuReL
    vocab: int = 0  # tokens that have rows for the layers; the others have the first one's
    # Of each layer: above how many standard deviations over the mean a value of the gate counts; -inf: all count.
    thinned: tuple[float, ...] = ()

    def above(self, layer: int) -> float | None:
        return self.thinned[layer] if self.thinned[layer] > -inf else None


def reworded(values: dict[str, Any]) -> dict[str, Any]:
    """Widths of layers, which must agree, as one."""
    found = gemma3.reworded(values)
    widths = found.get(WIDTHS)
    alike = isinstance(widths, list) and widths and widths == widths[:1] * len(widths)
    return {**found, WIDTHS: widths[0]} if widths and alike else found


def finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    """The configuration of a file of a kind. Raises ModelFileError for layers that cannot be."""
    config = windowed(config, values, STEP, window=512) if kind == HF else _silent(config, values)
    first = config.layers - config.own.borrowing
    lent = {layer in config.full_layers for layer in range(first)}
    if not {layer in config.full_layers for layer in range(max(first, 0), config.layers)} <= lent:
        what = "layers that share keys and values have no earlier layer of their type to share with"
        raise ModelFileError(f"{values.where}: {what}{values.among('num_kv_shared_layers', 'layer_types')}")
    own = replace(config.own, thinned=_thinned(config.layers, values, kind))
    scales = Scales(embedding=config.width**0.5, attention=1.0)
    return replace(config, scales=scales, own=own, logit_cap=config.logit_cap or None)


def _silent(config: ModelConfig, values: Fields) -> ModelConfig:
    """What llama.cpp takes where GGUF files say nothing. Raises UnsupportedModel if layers compute another stream."""
    if values.integer(ACTIVE, 0, 8, 0):
        raise UnsupportedModel(f"{values.where}: {ACTIVE} is not 0: not supported")
    cap = config.logit_cap if values.has(CAP) else LLAMA_CPPS_CAP
    borrowing = config.own.borrowing if values.has(BORROWING) else max(config.layers - LLAMA_CPPS_KEPT, 0)
    return replace(config, logit_cap=cap, own=replace(config.own, borrowing=borrowing))


def _thinned(layers: int, values: Fields, kind: Kind) -> tuple[float, ...]:
    """Shares of values that are left out, of config.json, as quantiles of a normal distribution; GGUF files have
    these."""
    key = PATTERN if kind == HF else FACTORS
    given: Any = values.values.get(key)
    told = given.tolist() if hasattr(given, "tolist") else given
    if told is None:
        told = [SHARE if layers > THINNED and layer < THINNED else 0.0 for layer in range(layers)]
    elif kind != HF:
        known = isinstance(told, list) and len(told) == layers and all(type(each) is float for each in told)
        if not known or any(each != each or each > 1e3 for each in told):
            raise ModelFileError(f"{values.where}: {key} is {shown(told)}; it must be a number for each layer")
        return tuple(each if each > -1e3 else -inf for each in told)
    told = [told] * layers if isinstance(told, int | float) else told
    shares = Fields({key: told}, values.where).numbers(key, layers, 0.0, 1 - FEWEST)
    return tuple(NormalDist().inv_cdf(share) if share >= FEWEST else -inf for share in shares)


def noticed(config: ModelConfig, metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> ModelConfig:
    """LAuReL's rank, and the tokens that have rows for the layers: what the tensors have."""
    rank, rows = (shapes.get(name, (0,))[0] for name in ("blk.0.laurel_l.weight", "per_layer_token_embd.weight"))
    return replace(config, own=replace(config.own, rank=rank, vocab=rows))


def said(config: ModelConfig) -> dict[str, tuple[str, Any]]:
    """More of the metadata of GGUF files."""
    uncapped: dict[str, tuple[str, Any]] = {} if config.logit_cap else {CAP: ("f32", 0.0)}
    found = uncapped | {FACTORS: ("[f32]", list(config.own.thinned)), ACTIVE: ("u32", 0)}
    return {f"gemma3n.{key}": value for key, value in found.items()}


def words(config: ModelConfig) -> dict[str, Any]:
    """More of config.json."""
    shares = [round(NormalDist().cdf(each), 6) if each > -inf else 0.0 for each in config.own.thinned]
    return {PATTERN: shares, "vocab_size_per_layer_input": config.own.vocab}


def wanted(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """llama.cpp reads keys and values of layers that borrow them, and rows of all tokens."""
    keys, own = config.kv_heads * config.head_dim, config.own
    found: dict[str, tuple[int, ...]] = {"per_layer_token_embd.weight": (config.vocab, own.inputs * config.layers)}
    for layer in range(config.layers - own.borrowing, config.layers):
        found |= {f"blk.{layer}.attn_{part}.weight": (keys, config.width) for part in "kv"}
        found[f"blk.{layer}.attn_k_norm.weight"] = (config.head_dim,)
    return found
