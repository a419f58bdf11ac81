"""GLM-5, 5.1 and 5.2: DeepSeek V3.2, its indexer rotated otherwise; layers of 5.2 share what one of them chose."""

from dataclasses import replace
from typing import Any

from sporelm.checkpoints import latent, sparse
from sporelm.checkpoints.experts import FUSED_EXPERTS, V3_CHOICE
from sporelm.checkpoints.family import Family, HfClass
from sporelm.checkpoints.fields import Fields, shown
from sporelm.checkpoints.tensor_names import HF, Kind
from sporelm.errors import UnsupportedModel
from sporelm.models.blocks.sparse_attention import SparseLayer
from sporelm.models.config import ModelConfig
from sporelm.models.families.deepseek32 import FIELDS, NAMES, Deepseek32
from sporelm.models.families.deepseek_words import BIASED, FLAGS, SHAPE
from sporelm.models.registry import architecture

DEFAULTS: dict[str, Any] = {"q_lora_rank": 2048, "v_head_dim": 256, "qk_nope_head_dim": 192, "n_group": 1}
DEFAULTS |= {"topk_group": 1, "rms_norm_eps": 1e-5, "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 32}
DEFAULTS |= {"max_position_embeddings": 202752}
TYPES, KINDS = "attention.indexer.types", ("shared", "full")
LONG = 1 << 20  # positions: of files with as many that say nothing of it, llama.cpp takes the pattern of GLM-5.2


def _by_schedule(layers: int, every: int, first: int) -> list[str]:
    """The kinds of layers by `index_topk_freq` and `index_skip_topk_offset`."""
    return [KINDS[max(layer - first + 1, 0) % max(every, 1) == 0] for layer in range(layers)]


def _kinds_in_folder(config: ModelConfig, values: Fields) -> Any:
    if (told := values.values.get("indexer_types")) is not None:
        return told
    if (pattern := values.values.get("index_topk_pattern")) is not None:
        letters = {kind[0].upper(): kind for kind in KINDS}
        return [letters.get(each) for each in pattern] if isinstance(pattern, str) else pattern
    every = values.integer("index_topk_freq", 0, config.layers, 1)
    return _by_schedule(config.layers, every, values.integer("index_skip_topk_offset", 0, config.layers, 2))


def _kinds_in_gguf(config: ModelConfig, values: Fields) -> Any:
    told = values.values.get(TYPES)
    if told is None:
        return _by_schedule(config.layers, 4 if config.context_length >= LONG else 1, 3)
    listed = told.tolist() if hasattr(told, "tolist") else told
    return [KINDS[bool(each)] for each in listed[: config.layers]] if isinstance(listed, list | tuple) else listed


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    """Which layers share. Raises UnsupportedModel for kinds that are unknown, missing, or shared before any is full."""
    config = sparse.finished(config, values, kind)
    kinds = _kinds_in_folder(config, values) if kind == HF else _kinds_in_gguf(config, values)
    known = isinstance(kinds, list) and len(kinds) == config.layers and all(each in KINDS for each in kinds)
    if not known or kinds[0] != "full":
        what = f"must say full or shared of each of the {config.layers} layers, full of the first"
        raise UnsupportedModel(f"{values.where}: indexer_types {what}; they are {shown(kinds)}")
    sharing = frozenset(layer for layer, each in enumerate(kinds) if each == "shared")
    return replace(config, own=replace(config.own, sharing=sharing))


def _said(config: ModelConfig) -> dict[str, tuple[str, Any]]:
    types = [layer not in config.own.sharing for layer in range(config.layers)]
    return latent.said(config, "glm-dsa", absorbed=True) | {f"glm-dsa.{TYPES}": ("[bool]", types)}


def _words(config: ModelConfig) -> dict[str, Any]:
    return sparse.words(config) | {"indexer_types": [KINDS[n not in config.own.sharing] for n in range(config.layers)]}


@architecture(
    Family(
        "glm-dsa",
        (HfClass("GlmMoeDsaForCausalLM", "glm_moe_dsa", {**SHAPE, **BIASED, **DEFAULTS}, FLAGS),),
        FIELDS,
        NAMES,
        others={"gguf": FUSED_EXPERTS},
        fixed=V3_CHOICE | {"rope_style": "adjacent"},
        only=sparse.ONLY | {"indexer_rope_interleave": (True,)},
        finish=_finished,
        regrouped=latent.regrouped,
        reworded=sparse.reworded,
        said=_said,
        words=_words,
        unsaid=latent.unsaid,
        ignored=("blk.{}.indexer.*",),  # which files of before `types` have for layers that share, too
        partial_rotary=True,
        further_layers=True,
        own=sparse.SparseShape,
    )
)
class GlmDsa(Deepseek32):
    """DeepSeek V3.2's layer, some of which see what the one before them saw (GLM team 2026)."""

    def layer(self, config: ModelConfig, index: int) -> SparseLayer:
        return SparseLayer(config, index, "adjacent")
