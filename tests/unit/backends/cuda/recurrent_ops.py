"""Ops with recurrent states, for tests: their rows, states and parameters at random, and steps exact and padded."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from unit.backends.cuda.compiled_kernels import SHARED_BYTES, compile_launch

Function = Callable[..., Any]


def require_interpreter() -> None:
    """Skip a test where kernels cannot run on the CPU."""
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("triton", reason="triton is not installed: pip install triton")
    from sporelm.backends.cuda.numbers import IS_INTERPRETED

    if not IS_INTERPRETED:
        pytest.skip("needs TRITON_INTERPRET=1")


@dataclass(frozen=True)
class RecurrentOp:
    """An op by name, with the widths of its arguments of rows, the shape of a state, and a function that calls it with
    rows and (state, starts, lengths, states)."""

    name: str
    widths: tuple[int, ...]
    state: tuple[int, ...]
    call: Callable[[Function, Sequence[Any], Sequence[Any]], Any]


def make_ops() -> dict[str, RecurrentOp]:
    """Return ops at small odd shapes."""
    import torch

    random = torch.Generator().manual_seed(7)

    def values(*shape: int) -> Any:
        return torch.randn(shape, generator=random)

    def rates(*shape: int) -> Any:
        return -torch.exp(values(*shape))

    found = []
    taps, added = values(4, 70), values(70)
    found.append(
        RecurrentOp("causal_conv1d", (70,), (3, 70), lambda run, rows, held: run(*rows, taps, added, *held, silu=True))
    )
    delta = rates(4), values(4)
    options: dict[str, Any] = {"key_heads": 2, "order": "each"}
    found.append(
        RecurrentOp(
            "gated_delta_rule",
            (2 * 2 * 10 + 4 * 20, 4, 4),
            (40, 20),
            lambda run, rows, held: run(*rows, *delta, *held, **options),
        )
    )
    scan = rates(4), values(4), values(4)
    found.append(
        RecurrentOp(
            "ssm_scan",
            (4 * 20 + 2 * 2 * 7, 4),
            (28, 20),
            lambda run, rows, held: run(*rows, *scan, *held, groups=2),
        )
    )
    rates_of_channels, skip = rates(5, 70), values(70)
    found.append(
        RecurrentOp(
            "selective_scan",
            (70, 70, 5, 5),
            (5, 70),
            lambda run, rows, held: run(*rows, rates_of_channels, skip, *held),
        )
    )
    unit = values(70), values(2, 35), values(2, 35)
    found.append(RecurrentOp("gated_lru", (70, 70, 70), (2, 35), lambda run, rows, held: run(*rows, *unit, *held)))
    kept = torch.exp(rates(3))
    found.append(
        RecurrentOp("lightning_attention", (3 * 3 * 20,), (60, 20), lambda run, rows, held: run(*rows, kept, *held))
    )
    found.append(
        RecurrentOp(
            "gated_linear_attention",
            (40, 40, 20, 36),
            (40, 18),
            lambda run, rows, held: run(*rows, *held, heads=4, key_heads=2),
        )
    )
    vectors, bonus = (values(20), values(20)), values(2, 10)
    found.append(
        RecurrentOp(
            "wkv7",
            (20, 20, 20, 36, 20),
            (20, 18),
            lambda run, rows, held: run(*rows, *vectors, bonus, *held),
        )
    )
    found.append(RecurrentOp("wkv6", (20, 20, 20, 36), (20, 18), lambda run, rows, held: run(*rows, bonus, *held)))
    return {each.name: each for each in found}


@dataclass(frozen=True)
class Chunk:
    """Rows of a sequence in a step: their number, the sequence's length after them, its slot."""

    rows: int
    length: int
    slot: int


def exact_step(chunks: Sequence[Chunk]) -> tuple[np.ndarray, ...]:
    """Return starts, lengths and states of a step with exact extents."""
    starts = np.cumsum([0, *(chunk.rows for chunk in chunks)])
    lengths, states = ([getattr(chunk, name) for chunk in chunks] for name in ("length", "slot"))
    return tuple(np.array(each, np.int32) for each in (starts, lengths, states))


def padded_step(
    chunks: Sequence[Chunk], block: int, decodes: int, blocks: int, dump_slot: int
) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """Return starts, lengths and states of a padded step, and the padded row of each row of the exact one."""
    counts = np.ones(decodes + blocks, np.int32)
    lengths, states = counts.copy(), np.full(decodes + blocks, dump_slot, np.int32)
    places, single, number = [], 0, decodes
    for chunk in chunks:
        if chunk.rows == 1:
            lengths[single], states[single] = chunk.length, chunk.slot
            places.append(single)
            single += 1
            continue
        for start in range(0, chunk.rows, block):
            count = min(block, chunk.rows - start)
            counts[number], states[number] = count, chunk.slot
            lengths[number] = chunk.length - chunk.rows + start + count
            first = decodes + (number - decodes) * block
            places += range(first, first + count)
            number += 1
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return (starts, lengths, states), np.array(places)


def assert_states_stay_in_registers(launches: Sequence[Any], card: int, max_registers: int, wide: int) -> None:
    """Fail unless a single kernel was launched that has no stack, and reads and writes 16 bytes at once so often."""
    [launch] = (each for each in launches if 0 not in each.grid)
    code = compile_launch(launch, card)
    assert code.stack_bytes == 0
    assert code.shared_bytes <= SHARED_BYTES[card]
    assert code.registers <= max_registers
    assert len([each for name in ("LDG", "STG") for each in code.instructions(name) if ".128" in each]) >= wide
