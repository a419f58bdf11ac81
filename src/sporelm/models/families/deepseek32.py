"""DeepSeek V3.2: V3, of whose positions a query sees those that an indexer chooses."""

from collections.abc import Mapping, Sequence
from typing import Any

from sporelm.checkpoints import latent, sparse
from sporelm.checkpoints.experts import (
    FUSED_EXPERTS,
    V3_CHOICE,
    V3_FIELDS,
    choice_bias_name,
    expert_fields,
    expert_names,
    shared_names,
)
from sporelm.checkpoints.family import Family, HfClass, fields
from sporelm.checkpoints.tensor_names import COMMON, changed
from sporelm.models.blocks.sparse_attention import SparseLayer, run_sparse_layers
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.families.deepseek_words import BIASED, FLAGS, SHAPE
from sporelm.models.inputs import StepInputs
from sporelm.models.registry import architecture

INDEX = {"index_topk": 2048, "index_head_dim": 128, "index_n_heads": 64, "max_position_embeddings": 163840}
FIELDS = fields(*sparse.SPARSE_FIELDS, *V3_FIELDS, *expert_fields(scores="scoring_func"), without=("window",))
NAMES = changed(COMMON, *latent.LATENT_NAMES, *sparse.INDEX_NAMES, *expert_names(), *shared_names(), choice_bias_name())


@architecture(
    Family(
        "deepseek32",
        (HfClass("DeepseekV32ForCausalLM", "deepseek_v32", {**SHAPE, **BIASED, **INDEX}, FLAGS),),
        FIELDS,
        NAMES,
        others={"gguf": FUSED_EXPERTS},
        fixed=V3_CHOICE | {"rope_style": "adjacent"},
        only=sparse.ONLY | {"indexer_rope_interleave": (False,)},
        finish=sparse.finished,
        regrouped=latent.regrouped,
        reworded=sparse.reworded,
        said=lambda config: latent.said(config, "deepseek32", absorbed=True),
        words=sparse.words,
        unsaid=latent.unsaid,
        partial_rotary=True,
        further_layers=True,
        own=sparse.SparseShape,
    )
)
class Deepseek32(Decoder):
    """Latent attention over chosen positions, then a mixture, or a dense block in the first layers (DeepSeek 2025)."""

    layers: Sequence[SparseLayer]

    def layer(self, config: ModelConfig, index: int) -> SparseLayer:
        return SparseLayer(config, index, "half")

    def through(self, x: Any, step: StepInputs, weights: Mapping[str, Any], caches: Sequence[Any]) -> Any:
        return run_sparse_layers(self.layers, x, step, weights, caches)
