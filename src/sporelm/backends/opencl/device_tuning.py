"""Numbers that are measured per device: vector widths, sizes of work-groups, tiles.

They change the speed, and of results only the order of sums.
"""

from dataclasses import dataclass

from sporelm.backends.opencl.device_selection import OpenClDevice


@dataclass(frozen=True)
class DeviceTuning:
    """The numbers that kernels are compiled and launched with.

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


# Of a CPU one work-item is a thread's loop over whole vectors, and a group has no more than that one.
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
    """Return the numbers of a device that was not measured."""
    return CPU_DEFAULTS if device.kind == "cpu" else GPU_DEFAULTS
