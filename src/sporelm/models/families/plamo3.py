"""PLaMo 3: norms around both blocks, windows in seven of eight layers, which have a rotary base of their own."""

from typing import Any

from sporelm.checkpoints.config_files import WINDOWED_LAYERS
from sporelm.checkpoints.family import Family, Field, HfClass, fields
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.rope_fields import MOST_THETA
from sporelm.checkpoints.tensor_names import HEAD_NORMS, HF, Kind, Stored, changed
from sporelm.checkpoints.windows import every, windowed
from sporelm.errors import UnsupportedModel
from sporelm.models.blocks import Attention, Layer, pre_norm
from sporelm.models.config import MOST_LAYERS, ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.families.plamo_names import MIXER, NAMES
from sporelm.models.registry import architecture
from sporelm.models.rope_scaling import UNSCALED, Yarn

STEP, WINDOW, LOCAL_THETA = 8, 128, 10000.0
PATTERN, FACTOR, ORIGINAL = "sliding_window_pattern", "rope_scaling_factor", "initial_context_length"
NUMBERS: dict[str, Any] = {"head_dim": 128, "num_key_value_heads": 4, "rope_theta": 150000, "tie_word_embeddings": True}
HEADS = tuple(
    names._replace(hf=Stored(f"{MIXER}{part}_norm.weight", plus=1.0))
    for part, names in zip("qk", HEAD_NORMS, strict=True)
)


def _reworded(values: dict[str, Any]) -> dict[str, Any]:
    """The window and YaRN in Llama's words; older folders say the first otherwise."""
    told = values.get("window_size", values.get("sliding_window", WINDOW))
    if isinstance(told, list):
        sizes = {size for size in map(str, told) if size != "None"}
        if len(sizes) > 1:
            raise UnsupportedModel("config.json: layers have windows of several sizes, which is not supported")
        told = next((size for size in told if size is not None), None)
    found = {**values, "sliding_window": told, "rope_parameters": None, "rope_scaling": None}
    if values.get("rope_global_theta") is not None:
        found["rope_theta"] = values["rope_global_theta"]
    if (factor := values.get(FACTOR, 1)) != 1:
        found["rope_scaling"] = {"rope_type": "yarn", "factor": factor, "truncate": False}
        found["rope_scaling"]["original_max_position_embeddings"] = values.get(ORIGINAL)
    return found


def _regrouped(values: dict[str, Any]) -> dict[str, Any]:
    """GGUF metadata that says every how many layers there is one without a window, as it is of each layer."""
    step = values.get(WINDOWED_LAYERS)
    if type(step) is not int:
        return values
    layers = Fields(values, "GGUF metadata").integer("block_count", 1, MOST_LAYERS)
    step = Fields(values, "GGUF metadata").integer(WINDOWED_LAYERS, 1, MOST_LAYERS)
    return {**values, WINDOWED_LAYERS: [(layer + 1) % step > 0 for layer in range(layers)]}


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    return windowed(config, values, STEP, key=PATTERN, window=WINDOW) if kind == HF else config


def _words(config: ModelConfig) -> dict[str, Any]:
    layers, scaling = config.layers, config.rope_scaling
    step = min(config.full_layers, default=layers) + 1
    if every(step)(layers) != config.full_layers:
        raise UnsupportedModel("layers without a window are not every so many; config.json of PLaMo 3 cannot say it")
    found: dict[str, Any] = {PATTERN: step, "rope_scaling": None, FACTOR: 1, ORIGINAL: None}
    if isinstance(scaling, Yarn):
        return found | {FACTOR: scaling.factor, ORIGINAL: scaling.original}
    if scaling != UNSCALED:
        raise UnsupportedModel("its positions are scaled otherwise than by YaRN; config.json of PLaMo 3 cannot say it")
    return found


@architecture(
    Family(
        "plamo3",
        tuple(
            HfClass(name, "plamo3", NUMBERS, (("window_size", "window"),))
            for name in ("Plamo3ForCausalLM", "PLaMo3ForCausalLM")
        ),
        fields(
            Field("local_theta", "rope.freq_base_swa", "f32", "rope_local_theta", 1.0, MOST_THETA, LOCAL_THETA),
        ),
        changed(NAMES, *HEADS),
        only={"hidden_activation": ("swiglu",), "attention_bias": (False,), "scale_embedding": (False,)},
        finish=_finished,
        full_layers=every(STEP),
        reworded=_reworded,
        regrouped=_regrouped,
        words=_words,
        tells_layers=True,
        yarn_truncates=False,
    )
)
class Plamo3(Decoder):
    """Norms in front of both blocks and behind them, and on heads of queries and keys (Preferred Networks 2025)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        attention = Attention(f"layers.{index}", config, config.window_of(index), norm="heads")
        return pre_norm(config, index, attention, behind=True)
