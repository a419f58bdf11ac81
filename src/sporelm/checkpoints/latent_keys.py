"""Multi-head latent attention: keys that schemas share, and the base classes of those schemas.

GGUF keys: llama.cpp's llama-arch.cpp, deepseek2.cpp and minicpm3.cpp. Hugging Face: the configuration classes of
transformers.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from sporelm.checkpoints.config_keys import OPTIONAL, Key
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema, MetadataEntry
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.rope_fields import MAX_FACTOR, PARTIAL, compute_mscale
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.models.config import MAX_HEAD_DIM, MAX_WIDTH, ModelConfig
from sporelm.models.latent_config import LatentAttentionShape, LatentConfig
from sporelm.models.rope_scaling import YarnScaling

LOG_MULTIPLIER: Final = "rope.scaling.yarn_log_multiplier"
LATENT_GGUF_KEYS: Final = (
    Key("latent.kv_lora_rank", "attention.kv_lora_rank", "u32", 1, MAX_WIDTH),
    Key("latent.q_lora_rank", "attention.q_lora_rank", "u32", 0, MAX_WIDTH, 0),
    Key("latent.qk_rope_head_dim", "rope.dimension_count", "u32", 2, MAX_HEAD_DIM),
    Key("latent.v_head_dim", "attention.value_length_mla", "u32", 1, MAX_HEAD_DIM),
    Key("latent.yarn_log_multiplier", LOG_MULTIPLIER, "f32", 0.0, MAX_FACTOR, OPTIONAL),
)
LATENT_HF_KEYS: Final = (
    Key("latent.kv_lora_rank", "kv_lora_rank", "u32", 1, MAX_WIDTH),
    Key("latent.q_lora_rank", "q_lora_rank", "u32", 0, MAX_WIDTH, 0),
    Key("latent.qk_rope_head_dim", "qk_rope_head_dim", "u32", 2, MAX_HEAD_DIM),
    Key("latent.v_head_dim", "v_head_dim", "u32", 1, MAX_HEAD_DIM),
)
Config = TypeVar("Config", bound=LatentConfig)


def get_latent(config: ModelConfig) -> LatentAttentionShape:
    """Return the shape of latent attention."""
    assert isinstance(config, LatentConfig)
    return config.latent


def with_latent_heads(config: Config, head_dim: int, where: str, keys: str = "") -> Config:
    """Return the configuration with the width of query heads and the scale of their scores.

    keys   of the widths, for the end of the message

    Raises ModelFileError for widths that do not fit together.
    """
    rotary, multiplier = config.latent.qk_rope_head_dim, config.latent.yarn_log_multiplier
    if config.rotary not in (0, rotary) or config.rotary % 2 or head_dim <= rotary:
        what = f"{config.rotary} of {rotary} rotary dimensions of a head of {head_dim} are rotated"
        raise ModelFileError(f"{where}: {what}; a head needs both rotated and unrotated pairs{keys}")
    factor = getattr(config.rope_scaling, "factor", 1.0)
    growth = compute_mscale(factor, 10 * multiplier) if multiplier else 1.0
    scales = replace(config.scales, attention=head_dim**-0.5 * growth**2)
    return replace(config, head_dim=head_dim, kv_heads=config.heads, scales=scales)


class LatentGgufSchema(GgufSchema):
    """GGUF files of models with latent attention.

    has_latent_widths   the keys of key and value widths hold those of the cached latents, as in new files; those of
                        heads have their own keys
    """

    allows_partial_rotary = True
    has_latent_widths: bool = True

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        values = _with_head_widths(gguf.values if values is None else values)
        config = super().config_from_metadata(gguf, values)
        assert isinstance(config, LatentConfig)
        return with_latent_heads(config, config.head_dim, gguf.where)

    def extra_metadata(self, config: ModelConfig) -> dict[str, MetadataEntry]:
        latent = get_latent(config)
        found = {"attention.key_length": config.head_dim, "attention.value_length": latent.v_head_dim}
        if self.has_latent_widths:
            found = {
                "attention.key_length_mla": config.head_dim,
                "attention.head_count_kv": 1,
                "attention.key_length": latent.kv_lora_rank + latent.qk_rope_head_dim,
                "attention.value_length": latent.kv_lora_rank,
            }
        entries: dict[str, MetadataEntry] = {key: ("u32", value) for key, value in found.items()}
        if latent.yarn_log_multiplier is not None:
            entries["rope.scaling.attn_factor"] = "f32", 1.0
        return {f"{self.names[0]}.{key}": entry for key, entry in entries.items()}

    def find_unsupported(self, config: ModelConfig) -> str:
        if config.rope_style != self.constants.get("rope_style", "half"):
            return "heads are rotated as halves"
        scaling = config.rope_scaling
        if isinstance(scaling, YarnScaling) and (
            scaling.attention != 1 or get_latent(config).yarn_log_multiplier is None
        ):
            return "YaRN scales its cosines and sines: its mscale differs from its mscale_all_dim"
        return ""


class LatentHfSchema(HfSchema):
    """Folders of models with latent attention.

    reads_rope_interleave   config.json may choose between rotation by halves and by adjacent pairs
    """

    allows_partial_rotary = True
    reads_rope_interleave: bool = False

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        # The angles depend on the width of the rotated part.
        values = values.with_changes({"head_dim": values.get("qk_rope_head_dim")})
        config = super().config_from_json(values, dtype)
        assert isinstance(config, LatentConfig)
        head_dim = values.integer("qk_nope_head_dim", 1, MAX_HEAD_DIM) + config.latent.qk_rope_head_dim
        mscale = _read_mscale(values)
        latent = replace(config.latent, yarn_log_multiplier=0.1 * mscale if mscale else None)
        keys = f" ({', '.join(('qk_rope_head_dim', 'qk_nope_head_dim', PARTIAL))})"
        config = with_latent_heads(replace(config, latent=latent), head_dim, values.where, keys)
        if not self.reads_rope_interleave:
            return config
        return replace(config, rope_style="adjacent" if values.flag("rope_interleave", True) else "half")

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        latent, scaling = get_latent(config), config.rope_scaling
        rotary = latent.qk_rope_head_dim
        found: dict[str, Any] = {"qk_nope_head_dim": config.head_dim - rotary, "head_dim": rotary}
        if not latent.q_lora_rank:
            found["q_lora_rank"] = None
        if isinstance(scaling, YarnScaling) and latent.yarn_log_multiplier is not None:
            mscale = round(10 * latent.yarn_log_multiplier, 6)
            found["rope_scaling"] = {
                "rope_type": "yarn",
                "factor": round(scaling.factor, 6),
                "beta_fast": round(scaling.beta_fast, 6),
                "beta_slow": round(scaling.beta_slow, 6),
                "mscale": mscale,
                "mscale_all_dim": mscale,
                "original_max_position_embeddings": scaling.original,
            }
        return found


def _with_head_widths(values: ConfigValues) -> ConfigValues:
    """Return GGUF metadata with the widths of heads under the usual keys.

    Newer files have them in addition to the widths of latents; older ones, and those of MiniCPM3, have only them.
    """
    found = dict(values.values)
    for name in ("key", "value"):
        plain = found.pop(f"attention.{name}_length", None)
        found.setdefault(f"attention.{name}_length_mla", plain)
    key, width, heads = map(found.get, ("attention.key_length_mla", "embedding_length", "attention.head_count"))
    if found["attention.value_length_mla"] is None and isinstance(width, int) and isinstance(heads, int) and heads > 0:
        found["attention.value_length_mla"] = width // heads
    if LOG_MULTIPLIER in found:  # it scales scores, not cosines and sines
        found.setdefault("rope.scaling.yarn_attn_factor", 1.0)
    return values.with_values({**found, "attention.key_length": key, "attention.head_count_kv": heads})


def _read_mscale(values: ConfigValues) -> float:
    """Return `mscale_all_dim` of config.json; 0 if it is absent. Raises UnsupportedModel unless the rope type is
    yarn."""
    rope: Any = values.get("rope_parameters") or values.get("rope_scaling") or {}
    if not isinstance(rope, Mapping) or not rope.get("mscale_all_dim"):
        return 0.0
    if (kind := rope.get("rope_type", rope.get("type"))) != "yarn":
        raise UnsupportedModel(f"{values.where}: mscale_all_dim is not supported for rope type {kind!r:.40}; yarn is")
    return ConfigValues(rope, values.where).number("mscale_all_dim", 0.0, MAX_FACTOR)
