"""CodeGen 1: GPT-J whose folders hold query, value and key in four parts, of a quarter of the heads each."""

from sporelm.errors import UnsupportedModel
from sporelm.models.families import gptj
from sporelm.models.registry import architecture
from sporelm.weights.config import ModelConfig
from sporelm.weights.family import Family, HfClass
from sporelm.weights.fields import Fields
from sporelm.weights.forms import grouped
from sporelm.weights.names import HF, Kind, Names, Stored, changed

PARTS = 4  # cores of the TPUs that it was trained on
TENSOR = f"{gptj.LAYER}attn.qkv_proj.weight"


def _quarter(config: ModelConfig) -> int:
    return config.width // PARTS


NAMES = changed(
    gptj.NAMES,
    *(
        Names(
            f"layers.{{}}.attn_{part}.weight",
            f"blk.{{}}.attn_{part}.weight",
            Stored(TENSOR, grouped([place], lambda config: PARTS, _quarter, _quarter, _quarter)),
        )
        for place, part in enumerate("qvk")
    ),
)


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    if config.heads % PARTS:
        raise UnsupportedModel(f"{values.where}: {config.heads} heads are not supported; multiples of {PARTS} are")
    if kind == HF and values.has("auto_map"):
        what = "auto_map names code of its own, as that of CodeGen 2, whose rows stand in another order"
        raise UnsupportedModel(f"{values.where}: {what}: not supported; CodeGen 1 is")
    return gptj.finished(config, values, kind)


@architecture(
    Family(
        "codegen",
        (HfClass("CodeGenForCausalLM", "codegen", gptj.DEFAULTS),),
        gptj.NUMBERS,
        NAMES,
        only=gptj.ONLY,
        finish=_finished,
        ignored=(f"{gptj.LAYER}attn.causal_mask",),
        **gptj.ALIKE,
    )
)
class CodeGen(gptj.GPTJ):
    """GPT-J's layer (Nijkamp et al. 2022)."""
