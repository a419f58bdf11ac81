"""Latent attention on disk and in the cache: files of old, layers that are left unread, every kind of pages, sleep."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import quantized_folders as made_by
from available import open_available
from close import assert_close, assert_near_in_nat
from families import CASES, Case, write_case
from hf_folders import tokenizer_json, write_tokenizer
from lora_files import merged, random_pairs, write_peft
from models.test_adapters import Steps
from models.test_kv_types import answer, assert_forked_and_woken
from models.test_quantized_folders import FP8, GPTQ, dense
from models.test_state_equalities import CONTEXT, SAMPLED, Right, generate, prompt_of
from models.test_worker import loaded
from sporelm import LLM
from sporelm.checkpoints import config_from_hf, open_model
from sporelm.checkpoints.latent_keys import get_latent
from sporelm.checkpoints.lora import make_target_model
from sporelm.checkpoints.sparse_keys import get_indexer
from sporelm.engine import Engine, Request, Worker
from sporelm.engine.engine_config import EngineConfig
from sporelm.engine.recording import RecordingFile
from sporelm.engine.recording_replay import Recording, Replay
from sporelm.engine.speculative import NgramDrafter, Speculation
from sporelm.errors import ModelFileError, SporeError
from sporelm.files.gguf import GgufWriter, open_gguf
from sporelm.quant import FORMATS, quantize_tensor
from sporelm.quant.stored_tensor import StoredTensor
from sporelm.tools.hf.from_hf import from_hf
from sporelm.tools.output_file import OutputFile, save_models
from stepping import Stepper
from unit.engine.hashed import SteadySpeculation

NAMES = ("deepseek2", "deepseek3", "deepseek32", "glm-dsa-odd-shared")
V2, V3, V32, SHARED = (next(case for case in CASES if case.name == name) for name in NAMES)
RANK = {"kv_lora_rank": 32}  # whole blocks of 32


@pytest.fixture
def cpu() -> Any:
    backend = open_available("cpu", threads=1)
    yield backend
    backend.close()


def written(place: Path, case: Case) -> tuple[Path, Path]:
    """A folder of the case, and what the converter makes of it."""
    folder, file = write_case(place / "folder", case), place / "m.gguf"
    write_tokenizer(folder, tokenizer_json(case.model.config.vocab))
    save_models([OutputFile(file, from_hf(folder).model)])
    return folder, file


def old_file(case: Case, file: Path, old: Path, form: str) -> Path:
    """The same as files of old have it: keys and values made by one tensor, in `form`, and the heads' own widths."""
    config, made = case.model.config, open_gguf(file)
    writer, tensors = GgufWriter(old), case.tensors()
    widths = {
        "key_length": config.head_dim,
        "value_length": get_latent(config).v_head_dim,
        "head_count_kv": config.heads,
    }
    for key, value in made.metadata.items():
        name = key.removeprefix("deepseek2.attention.")
        if not name.endswith("_mla"):
            writer.add(key, widths.get(name, value), *(["u32"] if name in widths else []))
    for name in made.tensors:
        if "_v_b" in name:
            continue
        stored = made.tensor(name)
        if "_k_b" in name:
            name = name.replace("attn_k_b", "attn_kv_b")
            values = tensors[f"model.layers.{name.split('.')[1]}.self_attn.kv_b_proj.weight"]
            blocks = quantize_tensor(FORMATS[form], values)
            stored = StoredTensor(name, FORMATS[form], values.shape, blocks.reshape(-1))
        writer.add_tensor(name, stored)
    writer.write()
    made.close()
    return old


@pytest.mark.parametrize("form", ["F32", "Q8_0"])
def test_files_of_old_mean_the_same(form: str, cpu: Any, load: Callable[..., Stepper], tmp_path: Path) -> None:
    """Blocks cannot be turned about, which a note says."""
    case = Case("old", V2.config | RANK)
    _, file = written(tmp_path, case)
    old = old_file(case, file, tmp_path / "old.gguf", form)
    source = open_model(old)
    found, expected = (
        replace(get_latent(config), yarn_log_multiplier=None) for config in (source.config, case.model.config)
    )
    assert found == replace(expected, kv_lora_rank=32)
    assert bool(source.notes) == (form != "F32")
    source.close()
    runners = [load(path, cpu, context=128, eager=False) for path in (file, old)]
    expected, found = (runner.logits(case.ids()[:40]) for runner in runners)
    if form == "F32":
        assert_close(found, expected, "f32")
    assert float(np.abs(found - expected).max()) < 0.05 * float(np.ptp(expected))
    for runner in runners:
        runner.close()


def test_layers_that_predict_further_ahead_are_left_unread(
    cpu: Any, load: Callable[..., Stepper], tmp_path: Path
) -> None:
    from safetensors.numpy import load_file, save_file

    place = write_case(tmp_path / "m", V3)
    runners = [load(place, cpu, context=128, eager=True)]
    tensors = load_file(place / "model.safetensors")
    names = [name for name in tensors if name.startswith("model.layers.1.")]
    more = {name.replace("layers.1.", "layers.2."): tensors[name] for name in names}
    save_file(tensors | more, place / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelFileError, match="holds tensors that DeepseekV3ForCausalLM does not have"):
        load(place, cpu, context=128, eager=True)  # a layer like the others, which config.json does not count
    more["model.layers.2.eh_proj.weight"] = np.ones((48, 96), np.float32)
    save_file(tensors | more, place / "model.safetensors", metadata={"format": "pt"})
    runners.append(load(place, cpu, context=128, eager=True))
    first, second = (runner.step([(0, V3.ids()[:5])])["logits"] for runner in runners)
    assert_close(first, second, "exact")
    for runner in runners:
        runner.close()


@pytest.mark.parametrize(("case", "kind"), [(V2, "f16"), (V2, "q8_0"), (V2, "fp8"), (SHARED, "f16"), (V32, "q8_0")])
def test_chunks_and_batches_change_nothing(
    case: Case, kind: str, cpu: Any, load: Callable[..., Stepper], tmp_path: Path
) -> None:
    place, ids = write_case(tmp_path / "m", case), case.ids()
    runner = load(place, cpu, context=128, eager=False, kv=kind, sequences=2)
    whole = runner.logits(ids)
    for chunk in (1, 17):
        runner.lengths = [0, 0]
        assert_close(runner.logits(ids, chunk=chunk), whole, "exact")
    runner.lengths = [0, 0]
    runner.step([(0, ids[:40]), (1, ids[:9])])
    assert_close(runner.step([(0, ids[40:41]), (1, ids[9:10])])["logits"], whole[[40, 9]], "exact")
    runner.close()


@pytest.mark.parametrize(("case", "kind"), [*((V2, kind) for kind in ("f32", "f16", "bf16", "q8_0")), (SHARED, "q8_0")])
def test_rows_sleep_and_are_copied_without_loss(case: Case, kind: str, tmp_path: Path) -> None:
    """A fork writes into a copy of the last page; a file gives back what was written, bit for bit; keys of indexers
    are of the pages as latents are."""
    folder, _ = written(tmp_path, case)
    with LLM(folder, kv=kind, max_context=128, threads=1, max_batch=2) as llm:
        engine, worker = llm.loaded_engine.engine, llm.loaded_engine.worker
        sequence = engine.sequence()
        known = [*case.ids(), *answer(engine, sequence, case.ids()).generated, 5]
        assert_forked_and_woken(engine, worker, sequence, known, tmp_path / "it.session")


@pytest.mark.parametrize("case", [V3, SHARED], ids=lambda case: case.name)
def test_an_engine_says_the_same_however_it_is_run(case: Case, cpu: Any, tmp_path: Path) -> None:
    """In chunks, beside others, guessing right and wrong, after giving way, from a fork and from a file."""
    limits, prompt = EngineConfig(CONTEXT, CONTEXT, case.model.config.vocab, 300, 4, 24), prompt_of(case)
    worker = Worker(loaded(write_case(tmp_path / "m", case), cpu, CONTEXT), cpu, limits=limits)

    def engine(speculation: Speculation | None = None, **changes: Any) -> Engine:
        return Engine(worker, replace(limits, **changes), speculation)

    def make_request(**service: Any) -> Request:
        return Request(prompt, sampling=SAMPLED, max_tokens=9, **service)

    (alone,) = generate(engine(), make_request())
    assert generate(engine(token_budget=7, max_batch=1), make_request()) == [alone]
    company = [Request(prompt[n : n * 3 + 20], sampling=SAMPLED, max_tokens=12) for n in (1, 40)]
    assert generate(engine(), *company, make_request())[-1] == alone
    for drafter in (NgramDrafter(), Right(len(prompt), alone[0])):
        assert generate(engine(SteadySpeculation(drafter)), make_request()) == [alone]
    assert generate(engine(num_pages=4), *[make_request(cache_salt=str(number)) for number in range(2)]) == [alone] * 2
    one = engine()
    sequence = one.sequence()
    generate(one, Request(prompt[:50], max_tokens=1, sequence=sequence))
    child = one.fork(sequence)
    assert generate(one, make_request(sequence=sequence), make_request(sequence=child)) == [alone] * 2
    one.save_session(child, tmp_path / "a.session", "model", {})
    woken, _ = one.load_session(tmp_path / "a.session", "model")
    further = [*prompt, *alone[0], 5, 6]
    requests = [Request(further, max_tokens=5, sequence=woken), Request(further, max_tokens=5, cache_salt="x")]
    assert len({str(answer) for answer in generate(one, *requests)}) == 1
    assert [request.cached_tokens for request in requests] == [len(prompt) + 8, 0]
    worker.close()


QUANTIZED = {
    "fp8": (V3, made_by.fp8((16, 8), suffix="_scale_inv"), FP8 | {"weight_block_size": [16, 8]}),
    "gptq act-order": (V2.widened(), made_by.gptq(order="own"), GPTQ | {"group_size": 32, "desc_act": True}),
}


@pytest.mark.parametrize("name", ["fp8", pytest.param("gptq act-order", marks=pytest.mark.all)])
def test_quantized_folders_give_the_logits_of_their_values(
    name: str, cpu: Any, load: Callable[..., Stepper], tmp_path: Path
) -> None:
    """The part that makes keys is turned about, whatever its numbers are."""
    case, scheme, settings = QUANTIZED[name]
    model: Any = SimpleNamespace(config=case.config, weights=case.tensors)
    plain = dense(tmp_path / "plain", model, made_by.write(tmp_path / "quantized", model, scheme, settings))
    runners = [load(plain, cpu, context=128, eager=True)]
    runners.append(load(tmp_path / "quantized", cpu, context=128, eager=True, dequantize=True))
    runners.append(load(tmp_path / "quantized", cpu, context=128, eager=True))
    expected, exact, found = (runner.step([(0, case.ids()[:30])])["logits"] for runner in runners)
    assert_close(exact, expected, "logits")
    assert_near_in_nat(found, expected, 0.01)
    for runner in runners:
        runner.close()


def test_adapters_add_to_rows_in_another_order(cpu: Any, tmp_path: Path) -> None:
    """Queries' rows are put so that their rotated numbers come first: an adapter is as if it were merged."""
    from safetensors.numpy import save_file

    model: Any = SimpleNamespace(weights=V2.tensors)
    pairs = random_pairs(model, 3, ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj"))
    adapter, places = write_peft(tmp_path / "adapter", pairs, 6.0), [tmp_path / "plain", tmp_path / "merged"]
    for place in places:
        write_case(place, V2)
    whole = V2.tensors() | merged(model, pairs, 2.0)
    save_file(whole, places[1] / "model.safetensors", metadata={"format": "pt"})
    plain, changed = (Steps(place, cpu) for place in places)
    plain.base = make_target_model(V2.model.params(), V2.model.config)
    before, expected = plain.logits(0), changed.logits(0)
    plain.use({5: adapter})
    found = plain.logits(5)
    assert np.abs(found - before).max() > 0.5
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=0)
    for each in (plain, changed):
        each.close()


def test_a_run_is_recorded_and_repeated(cpu: Any, tmp_path: Path) -> None:
    """With a prefix that is held, and pages of two kinds in a layer."""
    limits, prompt = EngineConfig(CONTEXT, CONTEXT, SHARED.model.config.vocab, 300, 4, 24), prompt_of(SHARED)
    worker = Worker(loaded(write_case(tmp_path / "m", SHARED), cpu, CONTEXT), cpu, limits=limits)
    recorded, file = Engine(worker, limits), RecordingFile(tmp_path / "run.jsonl")
    file.follow(recorded, worker, {"limits": {**vars(limits)}})
    requests = [Request(prompt, sampling=SAMPLED, max_tokens=5), Request(prompt[:90], max_tokens=9)]
    generate(recorded, requests[0])
    generate(recorded, requests[1])
    file.close()
    worker.recorder = None
    assert requests[1].cached_tokens == 64
    found = Replay(Recording(tmp_path / "run.jsonl"), worker).run()
    assert (found.difference, found.stopped, found.num_sampled) == (None, None, 14)
    worker.close()


OF_INDEXERS: dict[str, tuple[Case, dict[str, Any], str]] = {
    "another rotation": (V32, {"indexer_rope_interleave": True}, "indexer_rope_interleave True is not supported"),
    "no indexer in a layer": (
        V32,
        {"layer_types": ["indexed_attention", "full_attention"]},
        "layer_types .* is not supp",
    ),
    "narrow heads": (V32, {"index_head_dim": 6}, "heads of the indexer have 6 dimensions, 8 are rotated"),
    "no latent of queries": (V32, {"q_lora_rank": None}, "q_lora_rank is missing"),
    "shared first": (SHARED, {"indexer_types": ["shared"] + ["full"] * 4}, "full for the first"),
    "unknown kind": (SHARED, {"indexer_types": ["full"] * 4 + ["none"]}, "must be full or shared"),
    "too few": (SHARED, {"indexer_types": ["full"]}, "for each of the 5 layers"),
}


@pytest.mark.parametrize("name", OF_INDEXERS)
def test_what_indexers_do_not_do_is_refused(name: str) -> None:
    case, changes, message = OF_INDEXERS[name]
    with pytest.raises(SporeError, match=message) as caught:
        config_from_hf(case.config | changes, "config.json")
    assert "\n" not in str(caught.value)


def test_indexers_of_layers_that_share_are_left_unread(cpu: Any, load: Callable[..., Stepper], tmp_path: Path) -> None:
    """Older files have them in every layer, and do not say which share: with a long context those of GLM-5.2 do."""
    case = replace(SHARED, config=SHARED.config | {"indexer_types": ["full"] * 3 + ["shared"] * 2})
    _, file = written(tmp_path, case)
    made, old = open_gguf(file), tmp_path / "old.gguf"
    writer = GgufWriter(old)
    for key, value in made.metadata.items():
        if key != "glm-dsa.attention.indexer.types":
            writer.add(key, *((1 << 20, "u32") if key == "glm-dsa.context_length" else (value,)))
    for name in made.tensors:
        for copy in {name, name.replace("blk.2.indexer", "blk.4.indexer")}:
            writer.add_tensor(copy, replace(made.tensor(name), name=copy))
    writer.write()
    made.close()
    runners = [load(place, cpu, context=128, eager=True) for place in (file, old)]
    expected, found = (runner.step([(0, case.ids()[:40])])["logits"] for runner in runners)
    assert_close(found, expected, "exact")
    for runner in runners:
        runner.close()


def test_layers_share_by_list_pattern_or_schedule() -> None:
    """As `GlmMoeDsaConfig` of transformers reads them."""
    plain = {name: value for name, value in SHARED.config.items() if name != "indexer_types"} | {"num_hidden_layers": 8}

    def sharing(**changes: Any) -> list[int]:
        return sorted(get_indexer(config_from_hf(plain | changes, "config.json")).shared_layers)

    assert sharing() == []
    assert sharing(index_topk_pattern="FSFSSFFS") == [1, 3, 4, 7]
    assert sharing(index_topk_freq=4, index_skip_topk_offset=3) == [3, 4, 5, 7]
    assert sharing(index_topk_freq=2) == [2, 4, 6]
