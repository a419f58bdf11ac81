"""Keys and tensors that schemas of RWKV share.

GGUF keys: llama.cpp's llama-arch.cpp. Hugging Face: the configuration classes of flash-linear-attention.
"""

from typing import Any, Final

from sporelm.checkpoints.config_keys import Key
from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.gguf_schema import MetadataEntry
from sporelm.checkpoints.gguf_tensors import PARTS
from sporelm.checkpoints.row_numbers import rows_of_part
from sporelm.checkpoints.tensor_table import StoredAs, TensorTable
from sporelm.checkpoints.transforms import Squeeze, TakePart, TakeRows, Transpose
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.models.architectures.rwkv6 import Rwkv6Config
from sporelm.models.architectures.rwkv7 import GROUP_NORM_EPS
from sporelm.models.config import MAX_WIDTH, ModelConfig

MAX_POSITIONS: Final = 1 << 20  # a state has no position limit; llama.cpp's converter writes this
GROUP_NORM_KEY: Final = Key("group_norm_eps", "attention.group_norm_epsilon", "f32", 0.0, 1.0, GROUP_NORM_EPS)
RWKV_CONSTANTS: Final = {"rotary": 0}

RWKV6_GGUF_KEYS: Final = (
    Key("token_shift_lora_rank", "time_mix_extra_dim", "u32", 1, MAX_WIDTH),
    Key("decay_lora_rank", "time_decay_extra_dim", "u32", 1, MAX_WIDTH),
)
RWKV6_MIXES: Final = "wkvrg"  # decays, keys, values, receptance, gate: the order of GGUF tensors
# Norms of layers.
NORM_GGUF_TENSORS: Final[TensorTable] = {
    f"{name}.{part}": f"{stored}.{part}"
    for name, stored in (
        ("embedding_norm", "token_embd_norm"),
        ("output_norm", "output_norm"),
        ("layers.{}.attn_norm", "blk.{}.attn_norm"),
        ("layers.{}.ffn_norm", "blk.{}.attn_norm_2"),
    )
    for part in PARTS
}


def with_heads_from_head_size(values: ConfigValues) -> ConfigValues:
    """Return GGUF metadata with the number of heads; files store 0."""
    width, head_dim = values.get("embedding_length"), values.get("wkv.head_size")
    heads = width // head_dim if type(width) is int and type(head_dim) is int and head_dim > 0 else None
    shape = {
        "attention.head_count": heads,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
    }
    found = {**values.values, **shape}
    return values.with_values({key: value for key, value in found.items() if value is not None})


def no_heads_metadata(name: str) -> dict[str, MetadataEntry]:
    """Return the number of attention heads in GGUF metadata of the architecture `name`: llama.cpp requires the key."""
    return {f"{name}.attention.head_count": ("u32", 0)}


def check_width(config: ModelConfig, values: ConfigValues, key: str = "") -> None:
    """Raise ModelFileError for a width that is not a multiple of the head width, UnsupportedModel for another value
    width.

    key   of config.json, for the width of values in all layers or in each
    """
    if config.heads * config.head_dim != config.width:
        what = f"width {config.width} is not a multiple of the heads' width {config.head_dim}"
        raise ModelFileError(f"{values.where}: {what}")
    given: Any = values.get(key)
    if given is not None and given not in (config.width, [config.width] * config.layers):
        raise UnsupportedModel(f"{values.where}: {key} {format_value(given)} is not supported; {config.width} is")


def _count_token_shift_rows(config: ModelConfig) -> int:
    assert isinstance(config, Rwkv6Config)
    return config.token_shift_lora_rank


# Rows of the first product of each mix in the fused tensor.
MIX_ROWS: Final = [rows_of_part(part, *[_count_token_shift_rows] * 5) for part in range(5)]
# Token shift mixes and decays of RWKV-6.
RWKV6_MIX_GGUF_TENSORS: Final[TensorTable] = {
    "layers.{}.mix_x.weight": "blk.{}.time_mix_lerp_x.weight",
    **{
        f"layers.{{}}.mix_{mix}.weight": StoredAs(
            "blk.{}.time_mix_lerp_fused.weight", TakePart(part, 5), Squeeze((0, 1))
        )
        for part, mix in enumerate(RWKV6_MIXES)
    },
    **{
        f"layers.{{}}.mix_{mix}_more_a.weight": StoredAs("blk.{}.time_mix_w1.weight", TakeRows(MIX_ROWS[part]))
        for part, mix in enumerate(RWKV6_MIXES)
    },
    **{
        f"layers.{{}}.mix_{mix}_more.weight": StoredAs("blk.{}.time_mix_w2.weight", TakePart(part, 5))
        for part, mix in enumerate(RWKV6_MIXES)
    },
    "layers.{}.wkv_decay.bias": "blk.{}.time_mix_decay.weight",
    "layers.{}.wkv_decay_a.weight": "blk.{}.time_mix_decay_w1.weight",
    "layers.{}.wkv_decay.weight": "blk.{}.time_mix_decay_w2.weight",
}


def rwkv6_mix_tensors(block: str, order: str) -> TensorTable:
    """Return the tensors of RWKV-6's mixes and decays in folders.

    block   prefix of their names
    order   of the mixes in the fused tensors
    """
    return {
        "layers.{}.mix_x.weight": StoredAs(f"{block}time_maa_x", Squeeze((0, 1))),
        **{f"layers.{{}}.mix_{mix}.weight": StoredAs(f"{block}time_maa_{mix}", Squeeze((0, 1))) for mix in RWKV6_MIXES},
        **{
            f"layers.{{}}.mix_{mix}_more_a.weight": StoredAs(
                f"{block}time_maa_w1", Transpose(), TakeRows(MIX_ROWS[order.index(mix)])
            )
            for mix in RWKV6_MIXES
        },
        **{
            f"layers.{{}}.mix_{mix}_more.weight": StoredAs(
                f"{block}time_maa_w2", TakePart(order.index(mix), 5), Transpose()
            )
            for mix in RWKV6_MIXES
        },
        "layers.{}.wkv_decay.bias": StoredAs(f"{block}time_decay", Squeeze((0, 1))),
        "layers.{}.wkv_decay_a.weight": StoredAs(f"{block}time_decay_w1", Transpose()),
        "layers.{}.wkv_decay.weight": StoredAs(f"{block}time_decay_w2", Transpose()),
    }
