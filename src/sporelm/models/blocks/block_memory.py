"""The memory that blocks keep from step to step."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Paged:
    """Keys and values of each position, of `kv_heads` heads, in pages of 64 positions."""

    kv_heads: int
    head_dim: int

    @property
    def position_shape(self) -> tuple[int, ...]:
        """The shape of the keys of a position, as `Backend.allocate_pages` takes it."""
        return self.kv_heads, self.head_dim


@dataclass(frozen=True)
class Latent:
    """One row of `width` numbers for each position, which all heads share, in pages of 64 positions. Attention mixes
    its first `values` numbers. A query reads at most `topk` of the rows; 0: all."""

    width: int
    values: int
    topk: int = 0

    @property
    def position_shape(self) -> tuple[int, ...]:
        """The shape of the row of a position, as `Backend.allocate_pages` takes it."""
        return (self.width,)


@dataclass(frozen=True)
class State:
    """The recurrent state of a sequence: float32 arrays of these shapes, which each token updates.

    Its cache is a tuple of tensors [slots, *shape]; `StepInputs.states` has the slot of each sequence. The content of a
    slot is not read where a sequence begins, at position 0.
    """

    shapes: tuple[tuple[int, ...], ...]


Memory = Paged | Latent | State
BlockMemory = Memory | tuple[Memory, ...]  # of a block with several memories, or with none


def list_memories(memory: BlockMemory) -> tuple[Memory, ...]:
    """Return the memories of a block, one by one; it takes one cache for each."""
    return memory if isinstance(memory, tuple) else (memory,)
