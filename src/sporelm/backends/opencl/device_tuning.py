"""The tuning parameters of a device: vector widths, sizes of work-groups, tiles. They are measured per device.

They change the speed, and of results only the order of sums.
"""

from dataclasses import dataclass, replace
from math import prod

from sporelm.backends.opencl.device_selection import OpenClDevice


@dataclass(frozen=True)
class DeviceTuning:
    """The parameters that kernels are compiled and launched with.

    vector          numbers that a work-item loads at once in elementwise kernels and norms
    elements_group  work-items of a group of elementwise kernels
    row_group       work-items that share a row in norms, argmax and top-k
    wide_scales     1: scales of blocks of weights are kept as float32, for a device that converts halves slowly
    few_tokens      tokens up to which a product reads the weight as it is packed; more tokens unpack it first
    few_rows        rows of a weight that a work-item multiplies at once, for few tokens
    row_blocks      times that it does so, one after the other
    dot_rows        the same as few_rows, where integers are multiplied
    few_group       work-items that share the columns of these rows
    tile_tokens     tokens of a work-item's tile of a product of many tokens
    tile_vectors    vectors of 16 outputs of that tile
    tile_group      work-items of a group in each direction of that product: outputs, tokens
    half_products   1: products of many tokens are added in half precision, where the device computes in it and
                    activations are stored in it
    slab_bytes      of unpacked weights at a time
    attention_rows  rows (a token of one head) that a work-group attends with at once
    attention_group work-items of that group
    """

    vector: int = 4
    elements_group: int = 64
    row_group: int = 64
    wide_scales: int = 0
    few_tokens: int = 8
    few_rows: int = 2
    row_blocks: int = 1
    dot_rows: int = 2
    few_group: int = 32
    tile_tokens: int = 8
    tile_vectors: int = 1
    tile_group: tuple[int, int] = (4, 8)
    half_products: int = 1
    slab_bytes: int = 64 << 20
    attention_rows: int = 4
    attention_group: int = 64


GROUPS = ("elements_group", "row_group", "few_group", "attention_group")  # work-items of groups of one dimension

# On a CPU a work-group is one work-item: a thread that loops over whole vectors.
CPU_DEFAULTS = DeviceTuning(
    vector=16,
    elements_group=128,
    row_group=1,
    wide_scales=1,
    few_tokens=8,
    few_rows=1,
    row_blocks=8,
    dot_rows=1,
    few_group=1,
    tile_tokens=8,
    tile_vectors=2,
    tile_group=(1, 1),
    half_products=1,
    slab_bytes=4 << 20,
    attention_rows=4,
    attention_group=1,
)
GPU_DEFAULTS = DeviceTuning()


def default_tuning(device: OpenClDevice) -> DeviceTuning:
    """Return the tuning parameters of a device that was not measured."""
    return CPU_DEFAULTS if device.kind == "cpu" else GPU_DEFAULTS


def fit_groups(tuning: DeviceTuning, device: OpenClDevice) -> DeviceTuning:
    """Return tuning parameters with no work-group larger than the device allows."""
    limit, (first, second, *_) = device.max_group_size, device.max_group_sizes
    changes = {name: _power_of_two(min(getattr(tuning, name), limit, first)) for name in GROUPS}
    panels, tokens = tuning.tile_group
    panels, tokens = _power_of_two(min(panels, second)), _power_of_two(min(tokens, first))
    while prod((panels, tokens)) > limit:
        panels, tokens = (panels // 2, tokens) if panels > tokens else (panels, tokens // 2)
    slab_bytes = min(tuning.slab_bytes, int(device.device.max_mem_alloc_size) // 4)
    return replace(tuning, tile_group=(panels, tokens), slab_bytes=slab_bytes, **changes)


def _power_of_two(limit: int) -> int:
    """Return the greatest power of two that is not above a limit."""
    return 1 << limit.bit_length() - 1
