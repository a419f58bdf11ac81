"""Random damage to folders of quantized weights: one line of an error, or a model; nothing else."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

import quantized_folders as made_by
from quantized_folders import Scheme, write
from sporelm.backends.reference import ReferenceBackend
from sporelm.checkpoints import open_model
from sporelm.checkpoints.loader import load_parameters
from sporelm.errors import SporeError
from sporelm.models import build
from tiny_models import WIDE

PACKED = {"config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}, "targets": ["Linear"]}}}
CASES: dict[str, tuple[Scheme, dict[str, Any]]] = {
    "gptq": (made_by.gptq(order="own"), {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True}),
    "awq": (made_by.awq(), {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}),
    "fp8": (made_by.fp8((128, 128)), {"quant_method": "fp8", "weight_block_size": [128, 128]}),
    "packed": (
        made_by.packed(symmetric=False),
        {"quant_method": "compressed-tensors", "format": "pack-quantized"} | PACKED,
    ),
    "int8": (made_by.int8(), {"quant_method": "compressed-tensors", "format": "int-quantized"} | PACKED),
    "nf4": (made_by.nf4(), {"quant_method": "bitsandbytes", "load_in_4bit": True}),
}
SIZES = {"F32": 4, "F16": 2, "BF16": 2, "I32": 4, "I64": 8, "I8": 1, "U8": 1, "F8_E4M3": 1, "F8_E8M0": 1}
JUNK = (None, 0, -1, 1, 3, 5, 8, 64, 1 << 40, 1.5, "", "gptq", "x" * 300, [], [1], [0, 1], {}, {"a": 1}, True)


def changed(value: Any, chance: random.Random) -> Any:
    """A JSON value with some of its parts gone or replaced."""
    if not isinstance(value, dict):
        return chance.choice(JUNK) if chance.random() < 0.2 else value
    return {key: changed(part, chance) for key, part in value.items() if chance.random() > 0.05}


def damage(entry: dict[str, Any], data: bytearray, chance: random.Random) -> None:
    """One tensor of a header: another type, another shape, or other bytes."""
    begin, end = entry["data_offsets"]
    kind = chance.random()
    if kind < 0.4:
        entry["dtype"] = chance.choice(list(SIZES))
    if kind < 0.7:
        count = (end - begin) // SIZES[entry["dtype"]]
        count = count if kind < 0.4 or not count else chance.randrange(count)
        width = entry["shape"][-1] if entry["shape"] else 1
        even = [[count // width, width]] if width and count % width == 0 else []
        entry["shape"] = chance.choice([[count], [count, 1], [1, count], *even, *even])
        entry["data_offsets"] = [begin, begin + count * SIZES[entry["dtype"]]]
        return
    for _ in range(20 if end > begin else 0):
        data[chance.randrange(begin, end)] = chance.randrange(256)


@pytest.mark.parametrize("rounds", [15, pytest.param(300, marks=pytest.mark.all)])
@pytest.mark.parametrize("case", CASES)
def test_damage_is_told_in_one_line(case: str, rounds: int, tmp_path: Path) -> None:
    scheme, settings = CASES[case]
    write(tmp_path / "good", WIDE, scheme, settings)
    raw = (tmp_path / "good/model.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    told: set[str] = set()
    (tmp_path / "bad").mkdir()
    for number in range(rounds):
        chance = random.Random(number)
        header, data = json.loads(raw[8 : 8 + length]), bytearray(raw[8 + length :])
        for name in chance.sample([name for name in header if "_proj." in name], chance.randrange(3)):
            if chance.random() < 0.2:
                del header[name]
            else:
                damage(header[name], data, chance)
        values = settings if number % 2 else changed(settings, chance)
        text = json.dumps(header).encode()
        (tmp_path / "bad/model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
        (tmp_path / "bad/config.json").write_text(json.dumps(WIDE.config | {"quantization_config": values}))
        try:
            source = open_model(tmp_path / "bad")
            loaded = load_parameters(source, build(source.config).params(), ReferenceBackend(), threads=1)
            assert all(weight.shape for weight in loaded.values())
        except SporeError as error:
            told.add(str(error))
    assert len(told) > 2, told
    assert not any("\n" in message or len(message) > 700 for message in told)
