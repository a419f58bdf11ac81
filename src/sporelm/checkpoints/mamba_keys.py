"""Keys and tensors of Mamba mixers that schemas share: Mamba 1 (Jamba) and Mamba 2 (most hybrids).

GGUF: llama.cpp's llama-arch.cpp. Hugging Face: the configuration classes and state dicts of transformers.
"""

from dataclasses import replace
from operator import attrgetter
from typing import Final, TypeVar

from sporelm.checkpoints.config_keys import OPTIONAL, Key
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_tensors import PARTS
from sporelm.checkpoints.row_numbers import RowNumbers, rows_of_part
from sporelm.checkpoints.tensor_table import StoredAs, TensorTable
from sporelm.checkpoints.transforms import NegativeExp, Squeeze, TakeRows, Transpose, Unflatten
from sporelm.errors import ModelFileError
from sporelm.models.architectures.mamba import MambaConfig
from sporelm.models.architectures.mamba2 import Mamba2Config
from sporelm.models.config import MAX_CONV_KERNEL, MAX_HEAD_DIM, MAX_HEADS, MAX_WIDTH, ModelConfig

MAX_EXPAND: Final = 64
UNLIMITED: Final = (0.0, float("inf"))  # time steps
# Names of heads, their width and their groups in config.json of any model.
HF_SIZE_KEYS: Final = (
    *("num_heads", "head_dim", "n_groups", "expand", "mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_expand"),
    *("mamba_num_heads", "mamba_head_dim", "n_mamba_heads", "mamba_ngroups", "mamba_headdim", "mamba_d_ssm"),
)
Mamba2 = TypeVar("Mamba2", bound=Mamba2Config)
Mamba1 = TypeVar("Mamba1", bound=MambaConfig)

# Keys that have the same name and bounds for both.
_CONV_KERNEL: Final = Key("mamba.conv_kernel", "ssm.conv_kernel", "u32", 2, MAX_CONV_KERNEL)
_STATE_SIZE: Final = Key("mamba.state_size", "ssm.state_size", "u32", 1, MAX_HEAD_DIM)
_INNER_SIZE: Final = Key("mamba.inner_size", "ssm.inner_size", "u32", 1, MAX_WIDTH)
_EXPAND: Final = Key("mamba.expand", "", "u32", 1, MAX_EXPAND)
_GGUF_BIAS_KEYS: Final = (
    Key("mamba.has_bias", "", "bool", tensor="layers.{}.ssm_o.bias"),
    Key("mamba.has_conv_bias", "", "bool", tensor="layers.{}.ssm_conv.bias"),
)
# Mamba 1's.
_TIME_STEP_RANK: Final = Key("mamba.time_step_rank", "ssm.time_step_rank", "u32", 1, MAX_WIDTH)
# Mamba 2's.
_NUM_HEADS: Final = Key("mamba.num_heads", "ssm.time_step_rank", "u32", 1, MAX_HEADS)
_NUM_GROUPS: Final = Key("mamba.num_groups", "ssm.group_count", "u32", 1, MAX_HEADS)
_HEAD_DIM: Final = Key("mamba.head_dim", "", "u32", 1, MAX_HEAD_DIM)

MAMBA_GGUF_KEYS: Final = (
    *(_CONV_KERNEL, _STATE_SIZE, _TIME_STEP_RANK, _INNER_SIZE._replace(default=OPTIONAL)),
    *_GGUF_BIAS_KEYS,
)
MAMBA2_GGUF_KEYS: Final = (_CONV_KERNEL, _NUM_HEADS, _NUM_GROUPS, _STATE_SIZE, _INNER_SIZE, *_GGUF_BIAS_KEYS)


def mamba_hf_keys(
    *,
    conv_kernel: str,
    state_size: str,
    time_step_rank: str,
    expand: str,
    has_bias: str,
    has_conv_bias: str,
    inner_size: str = "",
) -> tuple[Key, ...]:
    """Return the keys of `MambaShape` under these names in config.json."""
    return (
        _CONV_KERNEL._replace(key=conv_kernel),
        _STATE_SIZE._replace(key=state_size),
        _TIME_STEP_RANK._replace(key=time_step_rank),
        _INNER_SIZE._replace(key=inner_size, default=OPTIONAL),
        _EXPAND._replace(key=expand),
        Key("mamba.has_bias", has_bias, "bool"),
        Key("mamba.has_conv_bias", has_conv_bias, "bool", default=True),
    )


def mamba2_hf_keys(
    *,
    conv_kernel: str,
    num_heads: str,
    num_groups: str,
    state_size: str,
    head_dim: str,
    expand: str = "",
    has_bias: str,
    has_conv_bias: str = "",
) -> tuple[Key, ...]:
    """Return the keys of `Mamba2Shape` under these names in config.json. Without `expand` the inner size follows from
    the heads."""
    return (
        _CONV_KERNEL._replace(key=conv_kernel),
        _NUM_HEADS._replace(key=num_heads),
        _NUM_GROUPS._replace(key=num_groups),
        _STATE_SIZE._replace(key=state_size),
        _HEAD_DIM._replace(key=head_dim),
        _EXPAND._replace(key=expand),
        Key("mamba.has_bias", has_bias, "bool"),
        Key("mamba.has_conv_bias", has_conv_bias, "bool", default=True),
    )


def with_time_step_rank(values: ConfigValues, key: str) -> ConfigValues:
    """Return a config.json with a number in place of "auto" for the rank of time steps: a sixteenth of the width."""
    width = values.get("hidden_size")
    if values.get(key, "auto") != "auto" or type(width) is not int:
        return values
    return values.with_changes({key: -(-width // 16)})


def with_mamba_sizes(config: Mamba1, inner_size: int) -> Mamba1:
    """Return the configuration with an inner size, also as a multiple of the model's width.

    inner_size   0 if the file has only the multiple
    """
    inner_size = inner_size or config.mamba.expand * config.width
    expand = max(1, inner_size // config.width)
    return replace(config, mamba=replace(config.mamba, inner_size=inner_size, expand=expand))


def with_gguf_mamba_sizes(config: ModelConfig, values: ConfigValues) -> ModelConfig:
    """Return the configuration of a GGUF file with all sizes of its Mamba 1 mixers."""
    assert isinstance(config, MambaConfig)
    return with_mamba_sizes(config, values.integer("ssm.inner_size", 1, MAX_WIDTH))


def with_gguf_mamba2_sizes(config: Mamba2, values: ConfigValues) -> Mamba2:
    """Return the configuration of a GGUF file with all sizes of its Mamba 2 mixers. Raises ModelFileError if they do
    not fit together."""
    mamba = config.mamba
    return _check_mamba2_sizes(
        replace(config, mamba=replace(mamba, head_dim=mamba.inner_size // mamba.num_heads)), values
    )


def with_hf_mamba2_sizes(config: Mamba2, values: ConfigValues) -> Mamba2:
    """Return the configuration of a config.json with all sizes of its Mamba 2 mixers, and with the limits of time
    steps. Raises ModelFileError if they do not fit together."""
    mamba = config.mamba
    mamba = replace(mamba, inner_size=mamba.expand * config.width or mamba.num_heads * mamba.head_dim)
    config = _check_mamba2_sizes(replace(config, mamba=mamba), values)
    if not values.has("time_step_limit"):
        return config
    low, high = values.numbers("time_step_limit", 2, *UNLIMITED)
    if low > high:
        what = f"time_step_limit is [{low:g}, {high:g}]"
        raise ModelFileError(f"{values.where}: {what}; the first must not exceed the second")
    return replace(config, mamba=replace(config.mamba, min_time_step=low, max_time_step=high))


def _check_mamba2_sizes(config: Mamba2, values: ConfigValues) -> Mamba2:
    mamba = config.mamba
    if mamba.inner_size != mamba.num_heads * mamba.head_dim or mamba.num_heads % mamba.num_groups:
        what = f"inner size {mamba.inner_size}, {mamba.num_heads} heads, {mamba.num_groups} groups"
        keys = values.list_keys(*HF_SIZE_KEYS)
        raise ModelFileError(f"{values.where}: {what}: these do not divide evenly{keys}")
    return replace(config, mamba=replace(mamba, expand=max(1, mamba.inner_size // config.width)))


def find_time_step_limits(config: ModelConfig) -> str:
    """Return the reason why a GGUF file cannot hold the Mamba 2 mixers, as a clause; "" if it can."""
    assert isinstance(config, Mamba2Config)
    limits = config.mamba.min_time_step, config.mamba.max_time_step
    return "" if limits == UNLIMITED else "time steps have limits"


# Rows of the tensors that hold several matrices.
_INNER, _STATE, _RANK = (attrgetter(f"mamba.{name}") for name in ("inner_size", "state_size", "time_step_rank"))
_ROWS_OF_INPUT: Final = {name: rows_of_part(number, _INNER, _INNER) for number, name in enumerate("xz")}
_ROWS_OF_CONVOLVED: Final = {
    name: rows_of_part(number, _RANK, _STATE, _STATE) for number, name in enumerate(("rank", "write", "read"))
}
_ROWS_OF_MAMBA2_INPUT: Final = {
    name: rows_of_part(number, _INNER, attrgetter("mamba.conv_channels"), attrgetter("mamba.num_heads"))
    for number, name in enumerate(("z", "xbc", "step"))
}
_NORM_NAMES: Final = {"rank": "dt", "write": "b", "read": "c"}
# A vector that is stored as a matrix of one column, and the taps of a convolution, [channels, 1, taps].
COLUMN: Final = Squeeze((1,), to_four=True)
CONV_TAPS: Final = (COLUMN, Transpose())


def _row_tensors(name: str, rows: dict[str, RowNumbers], parts: tuple[str, ...] = PARTS) -> TensorTable:
    return {
        f"layers.{{}}.ssm_{each}.{part}": StoredAs(f"{name}.{part}", TakeRows(numbers))
        for each, numbers in rows.items()
        for part in parts
    }


def _with_bias(parameter: str, stored: str) -> TensorTable:
    return {f"{parameter}.{part}": f"{stored}.{part}" for part in PARTS}


# Mamba 1's mixers in GGUF files.
MAMBA_GGUF_TENSORS: Final[TensorTable] = {
    **_row_tensors("blk.{}.ssm_in", _ROWS_OF_INPUT),
    **_row_tensors("blk.{}.ssm_x", _ROWS_OF_CONVOLVED, ("weight",)),
    **_with_bias("layers.{}.ssm_dt", "blk.{}.ssm_dt"),
    **_with_bias("layers.{}.ssm_o", "blk.{}.ssm_out"),
    "layers.{}.ssm_conv.weight": StoredAs("blk.{}.ssm_conv1d.weight", Transpose()),
    "layers.{}.ssm_conv.bias": "blk.{}.ssm_conv1d.bias",
    "layers.{}.ssm.decay": StoredAs("blk.{}.ssm_a", Transpose()),
    "layers.{}.ssm.skip": "blk.{}.ssm_d",
    **{
        f"layers.{{}}.ssm_{name}_norm.weight": f"blk.{{}}.ssm_{stored}_norm.weight"
        for name, stored in _NORM_NAMES.items()
    },
}
# Mamba 2's.
MAMBA2_GGUF_TENSORS: Final[TensorTable] = {
    **_row_tensors("blk.{}.ssm_in", _ROWS_OF_MAMBA2_INPUT),
    **_with_bias("layers.{}.ssm_o", "blk.{}.ssm_out"),
    "layers.{}.ssm_conv.weight": StoredAs("blk.{}.ssm_conv1d.weight", Transpose()),
    "layers.{}.ssm_conv.bias": "blk.{}.ssm_conv1d.bias",
    "layers.{}.ssm.decay": StoredAs("blk.{}.ssm_a", COLUMN),
    "layers.{}.ssm.skip": StoredAs("blk.{}.ssm_d", COLUMN),
    "layers.{}.ssm_dt.bias": "blk.{}.ssm_dt.bias",
    "layers.{}.ssm_norm.weight": "blk.{}.ssm_norm.weight",
}


def mamba_hf_tensors(mixer: str) -> TensorTable:
    """Return the tensors of Mamba 1's mixers in folders.

    mixer   prefix of their names
    """
    return {
        **_row_tensors(f"{mixer}in_proj", _ROWS_OF_INPUT),
        **_row_tensors(f"{mixer}x_proj", _ROWS_OF_CONVOLVED, ("weight",)),
        **_with_bias("layers.{}.ssm_dt", f"{mixer}dt_proj"),
        **_with_bias("layers.{}.ssm_o", f"{mixer}out_proj"),
        "layers.{}.ssm_conv.weight": StoredAs(f"{mixer}conv1d.weight", *CONV_TAPS),
        "layers.{}.ssm_conv.bias": f"{mixer}conv1d.bias",
        "layers.{}.ssm.decay": StoredAs(f"{mixer}A_log", Transpose(), NegativeExp()),
        "layers.{}.ssm.skip": f"{mixer}D",
        **{
            f"layers.{{}}.ssm_{name}_norm.weight": f"{mixer}{stored}_layernorm.weight"
            for name, stored in _NORM_NAMES.items()
        },
    }


def mamba2_hf_tensors(mixer: str) -> TensorTable:
    """Return the tensors of Mamba 2's mixers in folders.

    mixer   prefix of their names
    """
    return {
        **_row_tensors(f"{mixer}in_proj", _ROWS_OF_MAMBA2_INPUT),
        **_with_bias("layers.{}.ssm_o", f"{mixer}out_proj"),
        "layers.{}.ssm_conv.weight": StoredAs(f"{mixer}conv1d.weight", *CONV_TAPS),
        "layers.{}.ssm_conv.bias": f"{mixer}conv1d.bias",
        "layers.{}.ssm.decay": StoredAs(f"{mixer}A_log", NegativeExp()),
        "layers.{}.ssm.skip": f"{mixer}D",
        "layers.{}.ssm_dt.bias": f"{mixer}dt_bias",
        "layers.{}.ssm_norm.weight": StoredAs(f"{mixer}norm.weight", Unflatten()),
    }
