"""The options of ranks: what fits together, and what each refusal says."""

from typing import Any

import pytest

from sporelm.api.parallel_options import ParallelOptions
from sporelm.errors import RequestError


def test_one_rank_needs_nothing() -> None:
    options = ParallelOptions()
    options.check()
    assert options.is_single
    assert (options.num_local, options.devices, options.address) == (1, (), None)


def test_micro_batches_are_those_of_the_ranks() -> None:
    options = ParallelOptions(pp=2, micro_batches=4)
    options.check()
    assert options.config.micro_batches == 4


def test_devices_are_for_stages_or_for_ranks() -> None:
    stages = ParallelOptions(tp=2, pp=2, rank_devices=("cuda@cuda:1", "cpu"))
    stages.check()
    assert stages.devices == (("cuda", "cuda:1"),) * 2 + (("cpu", "cpu"),) * 2
    ranks = ParallelOptions(tp=2, rank_devices=["torch", "cpu"])
    ranks.check()
    assert ranks.devices == (("torch", "cpu"), ("cpu", "cpu"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tp": "2"}, "tp is '2': it must be a whole number"),
        ({"tp": 0}, r"the option tp: out of range \(got 0; allowed 1 to"),
        ({"ep": 1}, r"the option ep: wrong type \(got 1; allowed True, False\)"),
        ({"tp": 2, "tp_shares": "12"}, "the option tp_shares: not a list"),
        ({"tp": 2, "tp_shares": [1]}, "the option tp_shares: must be one positive number for each rank"),
        ({"pp": 2, "pp_layers": [1, 0]}, "the option pp_layers: must be the number of layers of each stage"),
        ({"tp": 2, "rank_executor": "fibres"}, "the option rank_executor: unknown"),
        ({"tp": 2, "remote_ranks": 2}, r"the option remote_ranks: out of range \(got 2; allowed 0 to 1"),
        ({"tp": 2, "remote_ranks": 1}, "the option remote_ranks: needs the option rank_listen"),
        ({"rank_listen": "10.0.0.1:7000"}, "the option rank_listen: is for workers on other hosts"),
        ({"pp": 2, "micro_batches": -1}, r"the option micro_batches: out of range \(got -1; allowed 0 to"),
        ({"tp": 2, "micro_batches": 2}, "the option micro_batches: needs stages .* Set the option pp"),
        ({"rank_tls_cert": "a.pem"}, "the option rank_tls_cert: needs the option rank_tls_key"),
        ({"pp": 2, "rank_devices": ("cpu",)}, r"the option rank_devices: .* allowed 2 of them\)"),
        ({"tp": 2, "pp": 2, "rank_devices": ("cpu",)}, r"the option rank_devices: .* allowed 2 or 4 of them\)"),
        (
            {"tp": 2, "rank_devices": ("cpu", "auto")},
            r"the option rank_devices: unknown back-end \(got 'auto'; allowed",
        ),
        ({"tp": 2, "rank_devices": ("cpu", "")}, r"the option rank_devices: unknown back-end \(got ''; allowed cpu"),
        ({"tp": 2, "rank_devices": ("cpu", "@x")}, r"the option rank_devices: unknown back-end \(got ''; allowed cpu"),
        ({"tp": 2, "rank_devices": ("cpu", "cuda@")}, r"the option rank_devices: no device behind @ \(got 'cuda@'\)"),
        ({"tp": 2, "rank_devices": "cpu,cpu"}, "the option rank_devices: must be one for each"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        ParallelOptions(**options).check()
