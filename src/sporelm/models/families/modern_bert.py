"""ModernBERT: norms in front, rotary positions, gated feed-forward blocks, windows in two layers of three."""

from dataclasses import replace
from typing import Any

from sporelm.checkpoints.config_files import full_layers_of, window_of
from sporelm.checkpoints.family import Family, Field, fields
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.rope_fields import MOST_THETA
from sporelm.checkpoints.tensor_names import GGUF, Kind
from sporelm.errors import UnsupportedModel
from sporelm.models.blocks import Classifier, EncoderAttention, EncoderLayer, GatedMLP, layer_norm_without_bias
from sporelm.models.config import MOST_LAYERS, ModelConfig
from sporelm.models.encoder import Encoder
from sporelm.models.encoder_config import EncoderConfig
from sporelm.models.families.modern_bert_names import CLASSES, HEADS
from sporelm.models.registry import architecture
from sporelm.models.text_facts import TextFacts, label_words, labels_of, noticed, said

STEP = 3  # of so many layers the first has no window
POOLED = ("", "mean", "cls")  # as GGUF files count them


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    if kind == GGUF:
        step = values.integer("attention.sliding_window_pattern", 1, MOST_LAYERS, STEP)
        return replace(config, full_layers=frozenset(range(0, config.layers, step)))
    facts: TextFacts = config.own
    if config.architecture.endswith("Classification"):
        facts = replace(facts, labels=labels_of(values), dense=True)
    step = values.integer("global_attn_every_n_layers", 1, MOST_LAYERS, STEP)
    full = frozenset(range(0, config.layers, step))
    full = full_layers_of(values, config.layers) if values.has("layer_types") else full
    return replace(config, own=facts, window=window_of(values, "local_attention", 128), full_layers=full)


def _noticed(config: ModelConfig, metadata: Any, shapes: Any) -> ModelConfig:
    if (found := metadata.get("modern-bert.hidden_activation", "gelu")) != "gelu":
        raise UnsupportedModel(f"{config.name}: modern-bert.hidden_activation {found!r:.40} is not supported; gelu is")
    return noticed(config, metadata, shapes)


def reworded(values: dict[str, Any]) -> dict[str, Any]:
    """transformers 5 has rotary parameters for each kind of layer; before, there were two bases."""
    found = {**values, "rope_theta": values.get("global_rope_theta", 160000.0)}
    kinds = values.get("rope_parameters")
    if not isinstance(kinds, dict) or "full_attention" not in kinds:
        return found
    local = kinds.get("sliding_attention") or {}
    if not isinstance(local, dict) or local.get("rope_type", "default") != "default":
        raise UnsupportedModel(
            f"rope_parameters of layers with a window are {local!r:.60}; only plain ones are supported"
        )
    theta = {"local_rope_theta": local["rope_theta"]} if "rope_theta" in local else {}
    return found | theta | {"rope_parameters": kinds["full_attention"]}


def bases(config: ModelConfig) -> dict[str, Any]:
    """What each layer is, and the rotary bases, in the words of transformers 5 and of before."""
    kinds = ["full_attention" if config.window_of(n) is None else "sliding_attention" for n in range(config.layers)]
    rope = {"full_attention": config.rope_theta, "sliding_attention": config.local_theta}
    older = {"global_rope_theta": config.rope_theta, "local_rope_theta": config.local_theta}
    parameters = {kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in rope.items()}
    return {"layer_types": kinds, "rope_parameters": parameters, **older}


@architecture(
    Family(
        "modern-bert",
        CLASSES,
        fields(
            Field("eps", "attention.layer_norm_epsilon", "f32", "norm_eps"),
            Field("local_theta", "rope.freq_base_swa", "f32", "local_rope_theta", 1.0, MOST_THETA, 10000.0),
            Field("own.pooled", "classifier.pooling_type", "u32", "classifier_pooling", default="mean", words=POOLED),
            without=("head_dim", "kv_heads"),
        ),
        CLASSES[0].names,
        only={
            "hidden_activation": ("gelu",),
            "classifier_activation": ("gelu",),
            **dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias", "classifier_bias"), (False,)),
        },
        finish=_finished,
        noticed=_noticed,
        said=lambda config: said(config, "modern-bert"),
        choose=lambda config: CLASSES[bool(config.own.labels)].name,
        words=lambda config: bases(config) | label_words(config),
        reworded=reworded,
        full_layers=lambda layers: frozenset(range(0, layers, STEP)),
        fronts=("model.",),
        ignored=HEADS,
        own=TextFacts,
        reads=True,
    )
)
class ModernBert(Encoder):
    """GPT-2's layer with GeGLU, rotary positions and no biases; the first has no norm in front (Warner et al. 2024)."""

    norms = staticmethod(layer_norm_without_bias)
    outer_norms = ("embedding_norm", "output_norm")

    def layer(self, config: ModelConfig, index: int) -> EncoderLayer:
        name, window = f"layers.{index}", config.window_of(index)
        attention = EncoderAttention(name, config, None if window is None else window // 2)
        first = self.norm(f"{name}.attn_norm") if index else None
        return EncoderLayer(first, attention, self.norm(f"{name}.ffn_norm"), GatedMLP(name, config, "gelu"), post=False)

    def head(self, config: EncoderConfig) -> Classifier:
        norm = self.norm("classifier_norm")
        return Classifier(config.head_labels, config.width, dense=True, bias=False, activation="gelu", norm=norm)
