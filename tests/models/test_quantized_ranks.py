"""Quantized weights that are sharded for several ranks: blocks, groups and column orders stay whole."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantized_folders as made_by
from close import assert_near_in_nat
from families import CASES, Case
from quantized_folders import FOLDERS, write
from rank_models import run_ranks
from sporelm.distributed.parallel_config import ParallelConfig
from sporelm.quant import format_of
from tiny_files import write_gguf
from tiny_models import SUPER

NEAR = 1e-4  # nat: ranks add the same products in another order
UNEVEN = "tp-uneven"  # the hardest: in the default run the other configurations have a few formats
CONFIGS = {
    "tp2": ParallelConfig(tp=2),
    UNEVEN: ParallelConfig(tp=3, shares=(1, 1, 2)),
    "tp2-pp2": ParallelConfig(tp=2, pp=2),
}
GGUF_FORMATS = ("F16", "BF16", "Q4_0", "Q5_1", "Q8_0", "Q4_K", "Q6_K", "IQ4_NL", "MXFP4", "TQ2_0")


def on_ranks(formats: Sequence[str]) -> list[Any]:
    """(configuration, format): all on the hardest configuration, every third on the others; `all` marks the rest."""
    return [
        pytest.param(name, each, marks=[] if name == UNEVEN or number % 3 == 0 else [pytest.mark.all])
        for name in CONFIGS
        for number, each in enumerate(formats)
    ]


def assert_equal_on_ranks(path: Path, ids: list[int], parallel: ParallelConfig, max_share: float = 0.0) -> None:
    """Several ranks give the logits of one, and each has less than `max_share` of the weights, if that is given."""
    one, several = run_ranks(path, ids, ParallelConfig()), run_ranks(path, ids, parallel)
    assert_near_in_nat(several.whole(parallel)[0], one.whole(ParallelConfig())[0], NEAR)
    if max_share:
        assert max(several.nbytes) < max_share * one.nbytes[0]


@pytest.mark.parametrize(("name", "format_name"), on_ranks(GGUF_FORMATS))
def test_blocks_of_gguf_formats(name: str, format_name: str, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", SUPER, matrices=format_of(format_name))
    assert_equal_on_ranks(path, SUPER.ids()[:40], CONFIGS[name], 0.75)


@pytest.mark.parametrize(("name", "scheme"), on_ranks(list(FOLDERS)))
def test_groups_and_orders_of_folders(name: str, scheme: str, tmp_path: Path) -> None:
    make, settings, tiny = FOLDERS[scheme]
    write(tmp_path / "folder", tiny, make, settings)
    assert_equal_on_ranks(tmp_path / "folder", tiny.ids()[:40], CONFIGS[name], 0.8)


@pytest.mark.parametrize("has_order", [False, True], ids=["in order", "act-order"])
@pytest.mark.parametrize("expert_parallel", [False, True], ids=["tp", "ep"])
def test_quantized_experts(expert_parallel: bool, has_order: bool, tmp_path: Path) -> None:
    widths = {"hidden_size": 128, "intermediate_size": 128, "moe_intermediate_size": 128, "head_dim": 32}
    widths |= {"vocab_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "num_experts": 4}
    found = next(each for each in CASES if each.name == "qwen3moe")
    case: Case = replace(found, name="qwen3moe-ranks", config=found.config | widths)
    settings = {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": has_order}
    make = made_by.gptq(group=64, order="own" if has_order else "")
    random, parts = np.random.default_rng(7), dict[str, Any]()
    for name, tensor in case.tensors().items():
        if name.endswith("_proj.weight"):
            more, _ = make(tensor, random)
            parts |= {name.removesuffix(".weight") + end: part for end, part in more.items()}
        else:
            parts[name] = tensor
    (tmp_path / "config.json").write_text(json.dumps(case.config | {"quantization_config": settings}))
    made_by.save(tmp_path / "model.safetensors", parts)
    ids = [int(each) for each in case.ids()[:20]]
    assert_equal_on_ranks(tmp_path, ids, ParallelConfig(tp=2, expert_parallel=expert_parallel), 0.75)
