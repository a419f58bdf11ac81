"""PLaMo 2: state spaces with a layer of attention every so many, norms around all blocks."""

from dataclasses import replace
from typing import Any

from sporelm.checkpoints.config_files import window_of
from sporelm.checkpoints.family import Family, Field, HfClass, fields
from sporelm.checkpoints.fields import Fields, shown
from sporelm.checkpoints.tensor_names import HEAD_NORMS, HF, Kind, changed
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.models.blocks import Layer, PerHeadNormAttention, Plamo2MambaMixer, pre_norm
from sporelm.models.config import MOST_HEAD_DIM, MOST_HEADS, MOST_LAYERS, MOST_WIDTH, ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.families.layer_kinds import attention_layers, by_key_heads, key_heads
from sporelm.models.families.plamo_names import MIXER, NAMES, space_names
from sporelm.models.families.space_fields import MOST_TAPS, RankedHeads
from sporelm.models.registry import architecture

STEP, WINDOW, LEAST_RANK = 2, 2048, 64
HEADS, FULL = "attention.head_count", "full_attention_idx"
NUMBERS: dict[str, Any] = {"num_key_value_heads": 4, "tie_word_embeddings": True, "mamba_d_state": 64}
NUMBERS |= {"mamba_d_conv": 4, "mamba_num_heads": 64, "hidden_size_per_head": 128}


def _every(step: int, layers: int) -> frozenset[int]:
    """The layers of attention: one in each run of so many, the last alone where there are few."""
    return frozenset({layers - 1} if layers <= step // 2 else range(step // 2, layers, step))


def _full(values: Fields, layers: int) -> frozenset[int]:
    told = values.values.get(FULL) or []
    if not isinstance(told, list) or any(type(layer) is not int or not 0 <= layer < layers for layer in told):
        raise ModelFileError(f"{values.where}: {FULL} is {shown(told)}; it must be numbers of the {layers} layers")
    return frozenset(told)


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    own: RankedHeads = config.own
    own = replace(own, rank=max(LEAST_RANK, config.width // 16))
    if kind == HF:
        attention = _every(values.integer("mamba_step", 2, MOST_LAYERS, STEP), config.layers)
        own = replace(own, inner=own.heads * config.head_dim, head_dim=config.head_dim, attention=attention)
        # A row sees as many rows before it as the window has.
        window = window_of(values, "attention_window_size", WINDOW)
        full = _full(values, config.layers)
        return replace(config, own=own, window=window and window + 1, full_layers=full)
    kinds = values.values.get("layer_types") or ["attention"] * config.layers
    own = replace(own, head_dim=own.inner // own.heads, attention=attention_layers(values, kinds, config.layers))
    if own.inner != own.heads * own.head_dim:
        raise ModelFileError(f"{values.where}: {own.inner} numbers are no whole parts of {own.heads} heads")
    return replace(config, own=own)


def _regrouped(values: dict[str, Any]) -> dict[str, Any]:
    """Layers without attention have no heads of queries either."""
    told: Any = values.get(HEADS)
    counts = told.tolist() if hasattr(told, "tolist") else told
    if isinstance(counts, list) and all(type(count) is int for count in counts):
        values = {**values, HEADS: max(counts, default=0)}
    return by_key_heads(values)


def _said(config: ModelConfig) -> dict[str, tuple[str, Any]]:
    return key_heads(config, "plamo2", config.own.attention) | {"plamo2.ssm.group_count": ("u32", 0)}


def _words(config: ModelConfig) -> dict[str, Any]:
    layers, attention = config.layers, config.own.attention
    steps = (step for step in range(2, 2 * layers + 3) if _every(step, layers) == attention)
    step = next(steps, None)
    if step is None or config.own.head_dim != config.head_dim:
        raise UnsupportedModel("layers of attention are not every so many, or heads differ; config.json cannot say it")
    full = sorted(config.full_layers) if config.window else sorted(attention)
    return {"mamba_step": step, FULL: full, "attention_window_size": (config.window or WINDOW + 1) - 1}


@architecture(
    Family(
        "plamo2",
        tuple(HfClass(name, "plamo2", NUMBERS) for name in ("Plamo2ForCausalLM", "PLaMo2ForCausalLM")),
        fields(
            Field("head_dim", "attention.key_length", "u32", "hidden_size_per_head"),
            Field("head_dim", "attention.value_length", "u32", ""),
            Field("own.taps", "ssm.conv_kernel", "u32", "mamba_d_conv", 2, MOST_TAPS),
            Field("own.heads", "ssm.time_step_rank", "u32", "mamba_num_heads", 1, MOST_HEADS),
            Field("own.size", "ssm.state_size", "u32", "mamba_d_state", 1, MOST_HEAD_DIM),
            Field("own.inner", "ssm.inner_size", "u32", "", 1, MOST_WIDTH),
        ),
        changed(
            NAMES,
            *space_names(),
            *(names._replace(hf=f"{MIXER}{part}_weight") for part, names in zip("qk", HEAD_NORMS, strict=True)),
        ),
        fixed={"own.groups": 1, "own.taps_bias": False},
        only={"rms_norm_eps": (1e-6,), "mamba_enabled": (True,), "linear_type": ("normal",), "image_token_id": (None,)},
        finish=_finished,
        regrouped=_regrouped,
        said=_said,
        words=_words,
        tells_layers=True,
        windowless=True,
        own=RankedHeads,
    )
)
class Plamo2(Decoder):
    """Norms in front of both blocks and behind them (Preferred Networks 2025).

    Files of llama.cpp's converter make llama.cpp leave queries and keys unturned; the published code turns them.
    """

    def layer(self, config: ModelConfig, index: int) -> Layer:
        name = f"layers.{index}"
        attends = index in config.own.attention
        mixer = (
            PerHeadNormAttention(name, config, config.window_of(index))
            if attends
            else Plamo2MambaMixer(name, config, config.own)
        )
        return pre_norm(config, index, mixer, behind=True)
