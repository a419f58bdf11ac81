"""OpenELM: Llama whose layers grow with depth, with norms of each head of queries and keys."""

from typing import Any

from sporelm.checkpoints.family import Family, Field, HfClass, fields
from sporelm.checkpoints.fields import Fields, shown
from sporelm.checkpoints.forms import QKV, ffn_rows, stacked
from sporelm.checkpoints.tensor_names import COMMON, Names, OfLayer, Stored, changed
from sporelm.errors import ModelFileError
from sporelm.models.blocks import Attention, Layer, pre_norm
from sporelm.models.config import MOST_WIDTH, ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.families.layer_shapes import LayerShapes, one_each, said, shaped, whole_numbers, with_lists
from sporelm.models.registry import architecture

LAYER = "transformer.layers.{}."
UNIT = 256  # of which the widths of feed-forward blocks are multiples
NAMES = changed(
    COMMON,
    Names("embedding.weight", "token_embd.weight", "transformer.token_embeddings.weight"),
    Names("output_norm.weight", "output_norm.weight", "transformer.norm.weight"),
    *(
        Names(f"layers.{{}}.{ours}.weight", f"blk.{{}}.{gguf}.weight", f"{LAYER}{hf}.weight")
        for ours, gguf, hf in (
            *((f"{part}_norm", f"{part}_norm", f"{part}_norm") for part in ("attn", "ffn")),
            *((f"attn_{part}_norm", f"attn_{part}_norm", f"attn.{part}_norm") for part in "qk"),
            ("attn_o", "attn_output", "attn.out_proj"),
            ("ffn_down", "ffn_down", "ffn.proj_2"),
        )
    ),
    *(
        Names(
            f"layers.{{}}.attn_{part}.weight",
            Stored("blk.{}.attn_qkv.weight", OfLayer(rows)),
            Stored(f"{LAYER}attn.qkv_proj.weight", OfLayer(rows)),
        )
        for part, rows in QKV.items()
    ),
    *(
        Names(
            f"layers.{{}}.ffn_{part}.weight",
            f"blk.{{}}.ffn_{part}.weight",
            Stored(f"{LAYER}ffn.proj_1.weight", OfLayer(stacked(number, ffn_rows, ffn_rows))),
        )
        for number, part in enumerate(("gate", "up"))
    ),
)


def _reworded(values: dict[str, Any]) -> dict[str, Any]:
    """Lists of what each layer has. Raises ModelFileError for other things."""
    read = Fields({"ffn_dim_divisor": UNIT, **values}, "config.json")
    width, unit = read.integer("model_dim", 1, MOST_WIDTH), read.integer("ffn_dim_divisor", 1, MOST_WIDTH)
    times: Any = values.get("ffn_multipliers")
    if not isinstance(times, list) or not all(
        isinstance(each, int | float) and 0 < each < MOST_WIDTH for each in times
    ):
        raise ModelFileError(f"config.json: ffn_multipliers is {shown(times)}; it must be a number for each layer")
    lists = {
        "layer_heads": whole_numbers(values.get("num_query_heads")),
        "layer_kv_heads": whole_numbers(values.get("num_kv_heads")),
        "layer_ffn": [_rounded(each * width, unit) for each in times],
    }
    theta = {"rope_theta": values.get("rope_freq_constant", 10000), "tie_word_embeddings": True}
    return with_lists({**values, **theta}, lists)


def _rounded(width: float, unit: int) -> int:
    """To a multiple; up where it would lose a tenth."""
    near = max(unit, int(width + unit / 2) // unit * unit)
    return near + unit * (near < 0.9 * width)


def _words(config: ModelConfig) -> dict[str, Any]:
    shapes: LayerShapes = config.own
    unit = UNIT if not any(each % UNIT for each in shapes.ffn) else 1
    heads = {"num_query_heads": list(shapes.heads), "num_kv_heads": list(shapes.kv_heads)}
    times = {"ffn_multipliers": [each / config.width for each in shapes.ffn], "ffn_dim_divisor": unit}
    return {**heads, **times, "rope_freq_constant": config.rope_theta, "share_input_output_layers": True}


@architecture(
    Family(
        "openelm",
        (HfClass("OpenELMForCausalLM", "openelm", {"head_dim": 128, "max_context_length": 2048}),),
        fields(
            Field("layers", "block_count", "u32", "num_transformer_layers"),
            Field("width", "embedding_length", "u32", "model_dim"),
            without=("window",),
        ),
        NAMES,
        only={
            "activation_fn_name": ("swish", "silu"),
            "ffn_with_glu": (True,),
            "normalize_qk_projections": (True,),
            "share_input_output_layers": (True,),
            "normalization_layer_name": ("rms_norm",),
        },
        finish=lambda config, values, kind: shaped(config, values, 1),
        said=lambda config: said(config, "openelm"),
        words=_words,
        reworded=_reworded,
        regrouped=one_each,
        positions="max_context_length",
        own=LayerShapes,
    )
)
class OpenELM(Decoder):
    """The Llama layer (Mehta et al. 2024)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        own = config.own.of_layer(config, index)
        return pre_norm(own, index, Attention(f"layers.{index}", own, norm="heads"))
