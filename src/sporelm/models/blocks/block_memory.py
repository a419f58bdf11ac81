"""What blocks keep from step to step."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Paged:
    """What a block keeps of each position: keys and values of `kv_heads` heads, in pages of 64 positions."""

    kv_heads: int
    head_dim: int

    @property
    def position_shape(self) -> tuple[int, ...]:
        """Return it as `Backend.allocate_pages` takes it."""
        return self.kv_heads, self.head_dim


@dataclass(frozen=True)
class Latent:
    """What a block keeps of each position: one row of `width` numbers that all heads share, in pages of 64 positions;
    its first `values` numbers are what is mixed. A query reads at most `most` of the rows; 0: all."""

    width: int
    values: int
    topk: int = 0

    @property
    def position_shape(self) -> tuple[int, ...]:
        """Return it as `Backend.allocate_pages` takes it."""
        return (self.width,)


@dataclass(frozen=True)
class State:
    """What a block keeps of a whole sequence: float32 arrays of these shapes, which each token changes.

    Its cache is a tuple of tensors [slots, *shape]; `StepInputs.states` says which slot is a sequence's. What a slot
    holds is not read where a sequence begins, at position 0.
    """

    shapes: tuple[tuple[int, ...], ...]


Memory = Paged | Latent | State
BlockMemory = Memory | tuple[Memory, ...]  # of a block that keeps several things, or nothing


def list_memories(memory: BlockMemory) -> tuple[Memory, ...]:
    """What a block keeps, one by one: it takes as many caches."""
    return memory if isinstance(memory, tuple) else (memory,)
