"""Folders of models that see as well: their text model runs, vision tensors and draft heads are not read."""

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from available import open_available
from close import assert_close
from families import CASES, POSITIONS, WHOLE, Case, write_case
from hf_folders import tokenizer_json, write_tokenizer
from sporelm import ops
from sporelm.checkpoints import config_from_hf, open_model
from sporelm.checkpoints.multimodal_text import MULTIMODAL_CLASSES, TEXT_MODELS, UNSUPPORTED_CLASSES
from sporelm.checkpoints.schema_registry import find_hf_schema
from sporelm.errors import ModelError, UnsupportedModel
from sporelm.files.gguf import open_gguf
from sporelm.models.architectures.mistral3 import Mistral3Config
from sporelm.models.architectures.qwen2vl import Qwen2VLConfig
from sporelm.models.rope_scaling import UNSCALED
from sporelm.text.tokenizers.hf_folder import TokenizerFolder
from sporelm.tools.hf.from_hf import from_hf
from sporelm.tools.hf.to_hf import to_hf
from sporelm.tools.output_file import OutputFile, save_models
from stepping import Stepper

BY_NAME = {case.name: case for case in CASES}


@pytest.mark.parametrize(
    ("name", "architecture", "old"),
    [
        ("qwen35", "Qwen3_5ForConditionalGeneration", False),
        ("qwen35moe-odd-tied", "Qwen3_5MoeForConditionalGeneration", False),
        ("gemma3", "Gemma3ForConditionalGeneration", True),
        ("gemma3n", "Gemma3nForConditionalGeneration", False),
        ("gemma3n-odd", "Gemma3nForConditionalGeneration", True),
        ("gemma4", "Gemma4ForConditionalGeneration", False),
        ("gemma4-unified", "Gemma4UnifiedForConditionalGeneration", False),
        ("cohere-compass", "CohereCompassForConditionalGeneration", False),
        ("ministral3-odd-tied", "Mistral3ForConditionalGeneration", False),
        ("ministral3", "Mistral3ForConditionalGeneration", True),
        ("llama4", "Llama4ForConditionalGeneration", True),
    ],
)
def test_text_of_a_model_that_sees(
    name: str, architecture: str, old: bool, load: Callable[..., Stepper], tmp_path: Path
) -> None:
    """`old`: under the names that transformers 4 wrote."""
    case = BY_NAME[name]
    plain, inner = write_case(tmp_path / "plain", case), dict(case.config)
    if "partial_rotary_factor" in inner:
        inner["rope_parameters"] = {"rope_theta": 10000.0, "mrope_section": [1, 1, 0]}
        inner["rope_parameters"]["partial_rotary_factor"] = inner.pop("partial_rotary_factor")
    tied = inner.pop("tie_word_embeddings")
    outer = {"architectures": [architecture], "text_config": inner, "vision_config": {"depth": 2}}
    place = tmp_path / "seeing"
    place.mkdir()
    (place / "config.json").write_text(json.dumps({**outer, "tie_word_embeddings": tied}))
    tensors = {
        f"language_model.{key}" if old else key.replace("model.", "model.language_model.", 1): values
        for key, values in case.tensors().items()
    }
    unread = ["model.visual.blocks.0.attn.qkv.weight", "vision_tower.vision_model.post_layernorm.weight"]
    if name == "llama4":
        unread = ["vision_model.layernorm_post.weight", "multi_modal_projector.linear_1.weight"]
    if name == "gemma4-unified":
        unread += ["model.vision_embedder.patch_dense.weight", "model.embed_audio.embedding_projection.weight"]
    if name.startswith("qwen"):
        unread += ["mtp.layers.0.mlp.experts.3.up_proj.weight", "mtp.norm.weight"]
    save_file(tensors | dict.fromkeys(unread, np.ones((2, 3), np.float32)), place / "model.safetensors")
    cpu = open_available("cpu", threads=1)
    runners = [load(folder, cpu, context=64, eager=True) for folder in (plain, place)]
    wanted, found = (runner.step([(0, case.ids()[:9])])["logits"] for runner in runners)
    assert_close(found, wanted, "exact")
    for runner in runners:
        runner.close()
    cpu.close()


def test_text_of_mistral_small() -> None:
    """The Mistral of transformers, whose window is 4096 where it is not said to be none."""
    text = {**BY_NAME["llama"].config, "model_type": "mistral", "rope_theta": 1e9, "sliding_window": None}
    outer = {"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3"}
    config = config_from_hf({**outer, "text_config": text}, "config.json")
    assert isinstance(config, Mistral3Config)
    assert (config.rope_theta, config.rope_scaling, config.temperature_scale) == (1e9, UNSCALED, 0)
    del text["sliding_window"]
    with pytest.raises(UnsupportedModel, match="sliding_window 4096 is not supported"):
        config_from_hf({**outer, "text_config": text}, "config.json")


def test_an_output_of_its_own_is_heeded(load: Callable[..., Stepper], tmp_path: Path) -> None:
    """Gemma 3's class ties the output, and config.json does not say it; but a folder with both has both."""
    case = replace(BY_NAME["gemma3"], config=BY_NAME["gemma3"].config | {"tie_word_embeddings": False})
    place = write_case(tmp_path / "model", case)
    cpu = open_available("cpu", threads=1)
    wanted = load(place, cpu, context=64, eager=True)
    (place / "config.json").write_text(json.dumps({k: v for k, v in case.config.items() if k != "tie_word_embeddings"}))
    found = load(place, cpu, context=64, eager=True)
    assert not found.model.config.tie_embeddings
    logits = [runner.step([(0, case.ids()[:9])])["logits"] for runner in (wanted, found)]
    assert_close(logits[1], logits[0], "exact")
    for runner in (wanted, found):
        runner.close()
    cpu.close()


def logits(load: Callable[..., Stepper], ids: list[int], *places: Path) -> list[np.ndarray]:
    """Of a prompt, by the models in these folders."""
    cpu = open_available("cpu", threads=1)
    found = []
    for place in places:
        runner = load(place, cpu, context=128, eager=True)
        found.append(runner.step([(0, ids)])["logits"])
        runner.close()
    cpu.close()
    return found


@pytest.mark.parametrize("name", ["qwen2vl", "qwen3vl"])
@pytest.mark.parametrize(("inner", "tower"), [("model.", "visual."), ("language_model.model.", "vision_tower.")])
def test_names_of_qwen_before_transformers_5(
    name: str, inner: str, tower: str, load: Callable[..., Stepper], tmp_path: Path
) -> None:
    case = BY_NAME[name]
    places = [write_case(tmp_path / kind, case) for kind in ("new", "old")]
    tensors = {key.replace("model.language_model.", inner): values for key, values in case.tensors().items()}
    save_file(tensors | {f"{tower}merger.bias": np.ones(3, np.float32)}, places[1] / "model.safetensors")
    wanted, found = logits(load, case.ids()[:9], *places)
    assert_close(found, wanted, "exact")


def test_experts_of_qwen3_vl_lie_either_way(load: Callable[..., Stepper], tmp_path: Path) -> None:
    """[experts, in, out] as published, [experts, out, in] as transformers 5 writes what it has read."""
    case = BY_NAME["qwen3vlmoe"]
    places = [write_case(tmp_path / kind, case) for kind in ("published", "written")]
    tensors = case.tensors()
    turned = {name: np.ascontiguousarray(each.swapaxes(1, 2)) for name, each in tensors.items() if ".experts." in name}
    assert len(turned) == 4
    save_file(tensors | turned, places[1] / "model.safetensors")
    wanted, found = logits(load, case.ids()[:9], *places)
    assert_close(found, wanted, "exact")
    write_tokenizer(places[1], tokenizer_json(case.model.config.vocab))
    save_models([OutputFile(tmp_path / "m.gguf", from_hf(places[1]).model)])
    (again,) = logits(load, case.ids()[:9], tmp_path / "m.gguf")
    assert_close(again, wanted, "f32")
    for shape in ((), (4,), (2, 2)):
        damaged = {name: np.ones(shape, np.float32) for name in turned}
        save_file(tensors | damaged, places[0] / "model.safetensors")
        with pytest.raises(ModelError, match="experts"):
            logits(load, case.ids()[:9], places[0])


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        ({"mrope_section": [2, 1, 2]}, r"mrope_section is \[2, 1, 2\]; it must be integers with sum 4"),
        ({"mrope_section": [4.0, 0, 0]}, "it must be integers"),
        ({"mrope_section": 4}, "mrope_section is 4; it must be a list of three"),
        ({}, "mrope_section is None; it must be a list of three"),
        ({"mrope_section": [2, 1, 1], "mrope_interleaved": True}, "mrope_interleaved True is not supported; False is"),
        ({"mrope_section": [2, 1, 1], "factor_of_time": 2}, "rope parameter 'factor_of_time' is unknown"),
    ],
)
def test_what_rotary_parameters_say_of_images_is_checked(rope: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        config_from_hf(BY_NAME["qwen2vl"].config | {"rope_scaling": rope}, "config.json")


def test_a_folder_made_of_a_file_says_how_images_are_placed(tmp_path: Path) -> None:
    """Sections, their turns, and in GGUF files the layers that get more of images."""
    case, file = BY_NAME["qwen3vl"], tmp_path / "m.gguf"
    place = write_case(tmp_path / "model", case)
    write_tokenizer(place, tokenizer_json(case.model.config.vocab))
    save_models([OutputFile(file, from_hf(place).model)])
    with open_gguf(file) as opened_file:
        metadata = opened_file.metadata
    assert list(metadata["qwen3vl.rope.dimension_sections"]) == [4, 2, 2, 0]
    assert metadata["qwen3vl.n_deepstack_layers"] == 1
    values = json.loads(to_hf(file).texts["config.json"])
    rope = {"rope_type": "default", "mrope_section": [4, 2, 2], "mrope_interleaved": True}
    assert (values["model_type"], values["text_config"]["model_type"]) == ("qwen3_vl", "qwen3_vl_text")
    assert values["text_config"]["rope_scaling"] == rope
    config, expected = config_from_hf(values, "config.json"), case.model.config
    assert isinstance(config, Qwen2VLConfig)
    assert isinstance(expected, Qwen2VLConfig)
    assert (config.mrope_section, config.deepstack_layers) == (expected.mrope_section, 3)


@pytest.mark.parametrize("case", WHOLE, ids=lambda case: case.name)
def test_text_of_a_whole(case: Case, load: Callable[..., Stepper], tmp_path: Path) -> None:
    """Classes of transformers around a text model of a family: its logits, and those of the GGUF file made of it."""
    place, file = write_case(tmp_path / "model", case), tmp_path / "m.gguf"
    write_tokenizer(place, tokenizer_json(case.model.config.vocab))
    towers = ["model.vision_tower.x.weight", "vision_model.x.weight", "audio_tower.x.weight", "model.image_newline"]
    save_file(case.tensors() | dict.fromkeys(towers, np.ones(3, np.float32)), place / "model.safetensors")
    save_models([OutputFile(file, from_hf(place).model)])
    found, again = logits(load, case.ids(), place, file)
    wanted = np.load(Path(__file__).parent / "goldens" / "families" / f"{case.name}.npy")
    span = float(np.ptp(wanted))
    assert_close(found[list(POSITIONS)] / span, wanted / span, "logits")
    assert_close(again / span, found / span, "logits")


@pytest.mark.parametrize(
    ("name", "architecture", "inner", "output"),
    [
        ("llava", "LlavaForConditionalGeneration", "language_model.model.", "language_model."),
        ("llava", "LlavaForConditionalGeneration", "model.", ""),
        ("hyperclovax-vision", "HCXVisionV2ForCausalLM", "model.language_model.model.", "model.language_model."),
    ],
)
def test_older_names_of_a_whole(
    name: str, architecture: str, inner: str, output: str, load: Callable[..., Stepper], tmp_path: Path
) -> None:
    case = next(case for case in WHOLE if case.name == name)
    older = replace(case, config=case.config | {"architectures": [architecture]})
    places = [write_case(tmp_path / kind, each) for kind, each in (("new", case), ("old", older))]
    tensors = {key.replace("model.language_model.", inner): values for key, values in case.tensors().items()}
    tensors[f"{output}lm_head.weight"] = tensors.pop("lm_head.weight")
    save_file(tensors, places[1] / "model.safetensors")
    wanted, found = logits(load, case.ids()[:9], *places)
    assert_close(found, wanted, "exact")


def test_a_whole_that_does_not_say_it_is_tied_where_it_has_no_output(tmp_path: Path) -> None:
    case = next(case for case in WHOLE if case.name == "llava")
    place = write_case(tmp_path / "model", case)
    (place / "config.json").write_text(json.dumps({k: v for k, v in case.config.items() if not k.startswith("tie")}))
    with closing(open_model(place)) as source:
        assert not source.config.tie_embeddings
    tensors = {name: values for name, values in case.tensors().items() if name != "lm_head.weight"}
    save_file(tensors | {"model.vision_tower.x.weight": np.ones(3, np.float32)}, place / "model.safetensors")
    with closing(open_model(place)) as source:
        assert source.config.tie_embeddings
        note = "text only: vision and audio tensors are skipped (model.vision_tower.x.weight)"
        assert source.notes == (note,)


def test_a_text_model_has_what_transformers_takes_where_nothing_is_said() -> None:
    """As LLaVA 1.5's folders have it, whose text model is Vicuna 7B."""
    text = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 32064, "rms_norm_eps": 1e-5}
    config = config_from_hf({"architectures": ["LlavaForConditionalGeneration"], "text_config": text}, "config.json")
    assert (config.width, config.ffn, config.layers, config.heads, config.kv_heads) == (4096, 11008, 32, 32, 32)
    assert (config.vocab, config.eps, config.architecture) == (32064, 1e-5, "LlamaForCausalLM")


@pytest.mark.parametrize("whole", [*MULTIMODAL_CLASSES, *UNSUPPORTED_CLASSES])
def test_text_models_of_wholes_are_there_and_documented(whole: str, root: Path) -> None:
    assert f"`{whole}`" in (root / "docs" / "models.md").read_text(encoding="utf-8")
    if whole in UNSUPPORTED_CLASSES:
        with pytest.raises(UnsupportedModel, match=f"{whole} is not supported: {UNSUPPORTED_CLASSES[whole]}"):
            config_from_hf({"architectures": [whole]}, "config.json")
        return
    text = TEXT_MODELS[MULTIMODAL_CLASSES[whole]]
    schema = find_hf_schema(text.name)
    assert (schema.class_name, schema.model_type) == (
        text.name,
        MULTIMODAL_CLASSES[whole].replace("4v", "4").removesuffix("_text"),
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"architectures": ["LlavaForConditionalGeneration"], "text_config": {"model_type": "opt"}},
            "text model of LlavaForConditionalGeneration: type 'opt' is not supported; cohere, cohere2",
        ),
        (
            {"architectures": ["Molmo2ForConditionalGeneration"], "text_config": {"model_type": "molmo2_text"}},
            "'Molmo2ForConditionalGeneration', with a text model of type 'molmo2_text', is not supported",
        ),
    ],
)
def test_other_text_models_are_refused_by_name(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        config_from_hf(values, "config.json")


def test_where_text_ends_may_be_said_of_the_text_model_alone(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, tokenizer_json(131))
    config: dict[str, Any] = {"text_config": {"eos_token_id": [7, 9]}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert TokenizerFolder(tmp_path).read_ids("eos_token_id") == [7, 9]
    (tmp_path / "config.json").write_text(json.dumps(config | {"eos_token_id": 8}))
    assert TokenizerFolder(tmp_path).read_ids("eos_token_id") == [8]
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 5}))
    assert TokenizerFolder(tmp_path).read_ids("eos_token_id") == [5]


@pytest.mark.parametrize("by_turns", [False, True])
def test_three_positions_that_are_one_turn_a_head_as_one_does(by_turns: bool) -> None:
    """So that layers of Qwen-VL rotate texts without them."""
    config = BY_NAME["qwen3vl"].model.config
    assert isinstance(config, Qwen2VLConfig)
    sections = config.mrope_section
    runs = [kind for kind, count in enumerate(sections) for _ in range(count)]
    streams = tuple(kind if kind and at < 3 * sections[kind] else 0 for at in range(8) for kind in [at % 3])
    cpu = open_available("cpu", threads=1)
    random = np.random.default_rng(0)
    x, table = (cpu.tensor(random.standard_normal((8, width), np.float32)) for width in (32, 16))
    positions = np.array([0, 1, 2, 5, 6, 7, 7, 3], np.int32)
    how: dict[str, Any] = {"head_dim": 16, "style": "half"}
    plain = ops.rope(x, cpu.tensor(positions), table, **how).numpy()
    three = cpu.tensor(np.repeat(positions[:, None], 3, axis=1))
    found = ops.rope(x, three, table, **how, streams=streams if by_turns else tuple(runs)).numpy()
    assert_close(found, plain, "exact")
    cpu.close()


def test_every_whole_is_compared_with_transformers() -> None:
    """Text models of the whole's own class are among the families' own cases."""
    wholes, families = ({case.config["architectures"][0] for case in cases} for cases in (WHOLE, CASES))
    published = {"HCXVisionV2ForCausalLM"}  # HyperCLOVAXVisionV2ForConditionalGeneration, as its makers call it
    assert wholes <= set(MULTIMODAL_CLASSES) <= wholes | families | published
