"""Every family on several ranks: tensor-, expert- and pipeline-parallel ones equal one rank."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest

from families import CASES, Case, write_case
from rank_models import RankResults, run_ranks
from sporelm.checkpoints import open_model
from sporelm.distributed.parallel_config import ParallelConfig
from sporelm.models import build

CONFIGS = {
    "tp2": ParallelConfig(tp=2),
    "tp4": ParallelConfig(tp=4),
    "tp-uneven": ParallelConfig(tp=3, shares=(1, 1, 2)),
    "ep2": ParallelConfig(tp=2, expert_parallel=True),
    "pp2": ParallelConfig(pp=2),
    "pp3": ParallelConfig(pp=3),
    "pp3-eager": ParallelConfig(pp=3),
    "tp2-pp2": ParallelConfig(tp=2, pp=2),
    "tp2-eager": ParallelConfig(tp=2),
    "pp2-eager": ParallelConfig(pp=2),
}
CLOSE = 1e-5  # of the range of all logits


def choose_configs(case: Case) -> list[Any]:
    """One configuration for every other case in the default run, all for each with --all."""
    number = crc32(case.name.encode())
    often = list(CONFIGS)[number // 2 % len(CONFIGS)] if number % 2 else ""
    return [pytest.param(case, name, marks=[] if name == often else pytest.mark.all) for name in CONFIGS]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], tuple[Path, RankResults]]:
    """The folder of a case, and its results on one rank."""
    found: dict[str, tuple[Path, RankResults]] = {}

    def run(case: Case) -> tuple[Path, RankResults]:
        if case.name not in found:
            folder = write_case(tmp_path_factory.mktemp(case.name), case)
            found[case.name] = folder, run_ranks(folder, [int(each) for each in case.ids()], ParallelConfig())
        return found[case.name]

    return run


def num_layers(folder: Path) -> int:
    source = open_model(folder)
    source.close()
    return len(build(source.config).layers)


@pytest.mark.parametrize(
    ("case", "name"),
    [each for case in CASES for each in choose_configs(case)],
    ids=lambda each: each if isinstance(each, str) else each.name,
)
def test_several_ranks_equal_one(case: Case, name: str, whole: Callable[[Case], tuple[Path, RankResults]]) -> None:
    folder, one = whole(case)
    parallel = CONFIGS[name]
    if parallel.pp > num_layers(folder):
        pytest.skip("fewer layers than stages")
    several = run_ranks(folder, [int(each) for each in case.ids()], parallel, eager=name.endswith("eager"))
    (logits, tokens), (wanted, wanted_tokens) = several.whole(parallel), one.whole(ParallelConfig())
    span = float(wanted.max() - wanted.min())
    assert np.abs(logits - wanted).max() <= CLOSE * span
    ranked = np.sort(wanted, axis=1)
    is_clear = ranked[:, -1] - ranked[:, -2] > 2 * CLOSE * span  # no tie up to rounding
    assert np.array_equal(tokens[is_clear], wanted_tokens[is_clear])
    if parallel.tp == 1:
        assert np.array_equal(logits, wanted), "the same calls in the same order"
