"""RWKV's folders and files that differ from ours."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from available import open_available
from close import assert_close
from families.case import write_case
from families.rwkv import CASES, QRWKV6, RWKV6, RWKV7
from hf_folders import tokenizer_json, write_tokenizer
from sporelm.checkpoints import config_from_hf
from sporelm.checkpoints.schema_registry import hf_schema_for
from sporelm.errors import ModelFileError, SporeError, UnsupportedModel
from sporelm.files.gguf import GgufWriter
from sporelm.models.architectures.rwkv6 import Rwkv6Config
from sporelm.tools.hf.from_hf import from_hf
from sporelm.tools.hf.to_hf import to_hf
from sporelm.tools.lazy_model import MetadataEntry
from sporelm.tools.output_file import OutputFile, save_models
from stepping import Stepper

BY_NAME = {case.name: case for case in CASES}
GOOSE, FINCH = BY_NAME["rwkv7"], BY_NAME["rwkv6"]


def test_mixes_in_one_tensor_and_shares_that_are_not_read(load: Callable[..., Stepper], tmp_path: Path) -> None:
    """The first folders of RWKV-7 have "x_x"; some have what shares values in the first layer too."""
    usual, older = (write_case(tmp_path / name, GOOSE) for name in ("usual", "older"))
    tensors = load_file(older / "model.safetensors")
    for layer in range(GOOSE.config["num_hidden_layers"]):
        at = f"model.layers.{layer}.attn."
        tensors[f"{at}x_x"] = np.concatenate([tensors.pop(f"{at}x_{part}")[0] for part in "rwkvag"])
    for name in [name for name in tensors if ".1.attn.v_lora." in name]:
        tensors[name.replace(".1.", ".0.", 1)] = np.full_like(tensors[name], 7)
    save_file(tensors, older / "model.safetensors", metadata={"format": "pt"})
    backend = open_available("cpu", threads=1)
    runners = [load(place, backend, context=64, eager=True) for place in (usual, older)]
    found = [runner.step([(0, GOOSE.ids()[:9])])["logits"] for runner in runners]
    assert_close(found[1], found[0], "exact")
    for runner in runners:
        runner.close()
    backend.close()


def test_a_norm_of_heads_that_folders_cannot_say(tmp_path: Path) -> None:
    """llama.cpp has one epsilon whatever a head's width is; folders multiply theirs by it."""
    place, file = write_case(tmp_path / "folder", GOOSE), tmp_path / "m.gguf"
    write_tokenizer(place, tokenizer_json(GOOSE.model.config.vocab))
    made = from_hf(place).model
    key = "rwkv7.attention.group_norm_epsilon"
    assert made.metadata[key].value == pytest.approx(16e-5)
    metadata = {name: entry for name, entry in made.metadata.items() if name != key}
    save_models([OutputFile(file, replace(made, metadata=metadata))])
    with pytest.raises(UnsupportedModel, match=r"has the epsilon 0\.00064, folders of RWKV7ForCausalLM 0\.00016"):
        to_hf(file)
    file = tmp_path / "far.gguf"
    save_models([OutputFile(file, replace(made, metadata=metadata | {key: MetadataEntry("f32", 2.0)}))])
    with pytest.raises(ModelFileError, match=r"group_norm_epsilon is 2\.0; it must be a number from 0\.0 to 1\.0"):
        to_hf(file)


def as_file(folder: Path, file: Path, change: Callable[[dict[str, np.ndarray]], None], **entries: Any) -> Path:
    """RWKV-6 as a GGUF file of changed tensors, and with these entries for those of its metadata."""
    if not folder.exists():
        write_tokenizer(write_case(folder, FINCH), tokenizer_json(FINCH.model.config.vocab))
    arrays = FINCH.stored(FINCH.gguf_schema)
    change(arrays)
    writer = GgufWriter(file)
    for key, entry in from_hf(folder).model.metadata.items():
        name = key.removeprefix("rwkv6.")
        writer.add(key, entries.get(name, entry.value), entry.kind)
    for name, values in arrays.items():
        writer.add_tensor(name, values)
    writer.write()
    return file


def test_finch_files_of_other_converters(load: Callable[..., Stepper], tmp_path: Path) -> None:
    """A tensor for each mix; and rows that are halved after each layer, with what is added to them."""

    def apart(arrays: dict[str, np.ndarray]) -> None:
        for name in [name for name in arrays if "lerp_fused" in name]:
            for part, mix in zip("wkvrg", arrays.pop(name), strict=True):
                arrays[name.replace("fused", part)] = mix.reshape(-1)

    def halved(arrays: dict[str, np.ndarray]) -> None:
        for name in arrays:
            if "time_mix_output" in name or "channel_mix_value" in name:
                arrays[name] = arrays[name] / 2 ** int(name.split(".")[1])

    folder, every = tmp_path / "folder", "rescale_every_n_layers"
    files = [as_file(folder, tmp_path / "apart.gguf", apart)]
    files.append(as_file(folder, tmp_path / "halved.gguf", halved, **{every: 1}))
    backend = open_available("cpu", threads=1)
    runners = [load(place, backend, context=64, eager=True) for place in (folder, *files)]
    wanted, first, second = (runner.step([(0, FINCH.ids()[:9])])["logits"] for runner in runners)
    assert_close(first, wanted, "f32")
    span = np.ptp(wanted)
    assert_close(second / span, wanted / span, "logits")  # norms add their epsilon to smaller rows
    for runner in runners:
        runner.close()
    backend.close()
    with pytest.raises(UnsupportedModel, match="its rows are halved every 1 layers, which a folder of Rwkv6"):
        to_hf(files[1])


def test_usual_ranks_of_qrwkv6() -> None:
    """The ranks that llama.cpp's converter takes for a folder without ranks."""
    silent = {key: value for key, value in QRWKV6.items() if not key.startswith("lora_rank")}
    for width, ranks in ((64, (32, 64)), (4096, (64, 128))):
        config = config_from_hf(silent | {"hidden_size": width, "lora_rank_decay": None}, "config.json")
        assert isinstance(config, Rwkv6Config)
        assert (config.token_shift_lora_rank, config.decay_lora_rank) == ranks


def test_ranks_that_finch_folders_cannot_say() -> None:
    assert isinstance(FINCH.model.config, Rwkv6Config)
    config = replace(FINCH.model.config, token_shift_lora_rank=16)
    with pytest.raises(UnsupportedModel, match="its ranks are 16 and 64, which a folder"):
        hf_schema_for(FINCH.gguf_schema, config)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "layers of attention": ({"attn": {"layers": [1], "num_heads": 3}}, "attn .* is not supported"),
    "other norms": ({"norm_first": False}, "norm_first False is not supported"),
    "another activation": ({"hidden_act": "relu"}, "hidden_act 'relu' is not supported; sqrelu is"),
    "wide values": ({"value_dim": [48, 96, 48]}, "value_dim .* is not supported; 48 is"),
    "no whole heads": ({"head_dim": 32}, "no whole heads of 32|not a multiple of"),
    "a head of nothing": ({"head_dim": 0}, "head_dim|num_attention_heads"),
    "another width within": (RWKV6 | {"attention_hidden_size": 96}, "attention_hidden_size 96 is not supported; 48"),
    "no divisor": (RWKV6 | {"head_size_divisor": 0}, "head_size_divisor is 0; it must be an integer"),
    "no width that is": (RWKV6 | {"hidden_size": 10**400, "intermediate_size": None}, "hidden_size is 1000"),
    "no width of rows": (
        {"hidden_size": 10**400, "intermediate_size": None},
        "hidden_size is 1000|num_attention_heads",
    ),
    "heads of nothing": (RWKV6 | {"head_size": 0}, "head_size|num_attention_heads"),
    "rotated queries": (QRWKV6 | {"use_rope": True}, "use_rope True is not supported; False is"),
    "keys that count whole": (QRWKV6 | {"balance_state": False}, "balance_state False is not supported"),
    "a norm of heads": (QRWKV6 | {"groupnorm_att": True}, "groupnorm_att True is not supported"),
    "no ranks": ({"a_low_rank_dim": None}, "a_low_rank_dim is missing"),
    "a ratio that is none": ({"intermediate_size": None, "hidden_ratio": "x"}, "intermediate_size is missing"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    values, message = REFUSED[case]
    with pytest.raises(SporeError, match=message) as caught:
        config_from_hf(values if "architectures" in values else RWKV7 | values, "config.json")
    assert "\n" not in str(caught.value)
