"""How the ranks of a model divide it: tensor-parallel ranks within a stage, stages one after the other."""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from sporelm.errors import RequestError

MAX_RANKS = 4096
MAX_MICRO_BATCHES = 4096


@dataclass(frozen=True)
class ParallelConfig:
    """The ranks of one model, numbered stage by stage: rank = stage * tp + place in the stage.

    tp                tensor-parallel ranks of a stage, which hold a shard of each weight
    pp                stages, which hold some layers each
    expert_parallel   experts are divided whole, instead of a shard of each
    shares            relative sizes of the shards of a stage's ranks; (): equal ones
    stage_layers      layers of each stage; (): as equal as possible
    micro_batches     parts into which a step is split so that stages work at the same time; 0: one for each stage

    Raises RequestError for values that do not fit together.
    """

    tp: int = 1
    pp: int = 1
    expert_parallel: bool = False
    shares: tuple[int, ...] = ()
    stage_layers: tuple[int, ...] = ()
    micro_batches: int = 0

    def __post_init__(self) -> None:
        for name, value in (("tp", self.tp), ("pp", self.pp)):
            if not 1 <= value <= MAX_RANKS:
                raise RequestError(
                    f"the option {name}: out of range (got {value}; allowed 1 to {MAX_RANKS}). Give the number of "
                    f"{'ranks' if name == 'tp' else 'stages'}."
                )
        if not 0 <= self.micro_batches <= MAX_MICRO_BATCHES:
            raise RequestError(
                f"the option micro_batches: out of range (got {self.micro_batches}; allowed 0 to {MAX_MICRO_BATCHES}). "
                "Leave it out for one of each stage."
            )
        if self.micro_batches and self.pp == 1:
            raise RequestError("the option micro_batches: needs stages that work at the same time. Set the option pp.")
        if self.shares and (len(self.shares) != self.tp or min(self.shares) < 1):
            raise RequestError(
                f"the option tp_shares: must be one positive number for each rank (got {list(self.shares)} for tp "
                f"{self.tp}). Give {self.tp} numbers, such as {','.join('1' * self.tp)}."
            )
        if self.stage_layers and (len(self.stage_layers) != self.pp or min(self.stage_layers) < 1):
            raise RequestError(
                f"the option pp_layers: must be the number of layers of each stage (got {list(self.stage_layers)} for "
                f"pp {self.pp}). Give {self.pp} positive numbers."
            )

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.tp * self.pp

    @cached_property
    def tp_shares(self) -> tuple[int, ...]:
        """The relative sizes of the shards of a stage's ranks."""
        return self.shares or (1,) * self.tp

    def stage(self, rank: int) -> int:
        """Return the stage of a rank."""
        return rank // self.tp

    def tp_rank(self, rank: int) -> int:
        """Return the place of a rank in its stage."""
        return rank % self.tp

    def share(self, rank: int) -> tuple[int, int, int]:
        """Return (start, length, total) of a rank's shard: the shards start to start + length of `total`."""
        place = self.tp_rank(rank)
        return sum(self.tp_shares[:place]), self.tp_shares[place], sum(self.tp_shares)

    def layer_ranges(self, num_layers: int) -> tuple[tuple[int, int], ...]:
        """Return the layers (first, end) of each stage. Raises RequestError if they do not add up to the model's."""
        counts = self.stage_layers
        if not counts:
            if num_layers < self.pp:
                raise RequestError(
                    f"the option pp: more stages than layers (got {self.pp}; allowed 1 to {num_layers}). Give less."
                )
            counts = tuple((num_layers * (i + 1)) // self.pp - num_layers * i // self.pp for i in range(self.pp))
        if sum(counts) != num_layers:
            raise RequestError(
                f"the option pp_layers: must add up to the layers of the model (got {list(counts)}, {sum(counts)} in "
                f"all; the model has {num_layers}). Give {self.pp} numbers with that sum."
            )
        starts = [sum(counts[:i]) for i in range(len(counts) + 1)]
        return tuple(pairwise(starts))
