"""Every family of `families` against its reference, against itself run otherwise, and as GGUF file.

With --all: also what transformers says now, and llama.cpp on the same file where SPORE_PEER names one.
"""

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from available import open_available
from close import assert_close, assert_near_in_nat
from families import CASES, EVERY, POSITIONS, TOKENS, Case, write_case
from family_references import GOLDENS, assert_like, reference
from hf_folders import tokenizer_json, write_tokenizer
from sporelm.checkpoints.schema_registry import gguf_schema_for, schemas_for
from sporelm.checkpoints.supported_models import MODELS
from sporelm.checkpoints.transforms import Divide, NormalizeRows
from sporelm.cli.main import main
from sporelm.errors import UnsupportedModel
from sporelm.files.safetensors import open_safetensors
from sporelm.tools.hf.from_hf import from_hf
from sporelm.tools.hf.save_folder import save_folder
from sporelm.tools.hf.to_hf import to_hf
from sporelm.tools.output_file import OutputFile, save_models
from stepping import Stepper

CONTEXT = 192
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
Run = tuple[Case, Stepper, np.ndarray]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], Path]:
    written: dict[str, Path] = {}

    def write(case: Case) -> Path:
        if case.name not in written:
            written[case.name] = write_case(tmp_path_factory.mktemp(case.name), case)
        return written[case.name]

    return write


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def run(
    request: pytest.FixtureRequest, cpu: Any, folder: Callable[[Case], Path], load: Callable[..., Stepper]
) -> Iterator[Run]:
    """A case, its model planned for three sequences, and the logits of the whole prompt in one step."""
    case: Case = request.param
    runner = load(folder(case), cpu, context=CONTEXT, eager=False, sequences=3)
    yield case, runner, runner.step([(0, case.ids())])["logits"]
    runner.close()


def again(runner: Stepper) -> Stepper:
    """The runner with nothing kept."""
    runner.lengths = [0] * len(runner.lengths)
    return runner


def test_logits_are_the_references(run: Run) -> None:
    case, _, whole = run
    assert_like(whole[list(POSITIONS)], reference(case))


def test_whole_is_chunks(run: Run) -> None:
    """Token by token, and in chunks."""
    case, runner, whole = run
    for chunk in (1, 23):
        assert_close(again(runner).logits(case.ids(), chunk=chunk), whole, "exact")


def test_eager_is_planned(run: Run, cpu: Any, load: Callable[..., Stepper], folder: Callable[[Case], Path]) -> None:
    case, _, whole = run
    runner = load(folder(case), cpu, context=CONTEXT, eager=True)
    for part in (slice(0, 66), slice(66, 69), slice(69, 70)):  # in every step bucket
        assert_close(runner.step([(0, case.ids()[part])])["logits"], whole[part], "exact")
    runner.close()


def test_alone_is_in_a_batch(run: Run) -> None:
    case, runner, whole = run
    ids = case.ids()
    again(runner).step([(0, ids[5:9]), (1, ids[:40]), (2, ids[3:30])])
    found = runner.step([(2, ids[30:31]), (1, ids[40:]), (0, ids[9:11])])["logits"]
    assert_close(found[1 : TOKENS - 39], whole[40:], "exact")


def test_a_cached_prefix_is_a_fresh_one(run: Run) -> None:
    """Another sequence goes on from the first one's page."""
    case, runner, whole = run
    ids, page = case.ids(), runner.pages[1, 0]
    again(runner).step([(0, ids[:64])])
    runner.go_on(0, 1)
    found = runner.step([(1, ids[64:])])["logits"]
    runner.pages[1, 0] = page
    assert_close(found, whole[64:], "exact")


def multiplied(case: Case) -> set[str]:
    """The tensors of a folder that have the configuration's multipliers in them, or columns of length one, once they
    have been in a GGUF file."""
    config, params = case.model.config, case.model.params()
    gguf, hf = (schema.resolve(params, config).tensors for schema in schemas_for(config))
    kinds = ((gguf, Divide), (hf, NormalizeRows))
    places = {
        place
        for tensors, kind in kinds
        for place, each in enumerate(tensors)
        if any(isinstance(step, kind) and step.changes_values for step in each.transforms)
    }
    return {hf[place].sources[0] for place in places}


@every_case
def test_as_a_gguf_file_and_back(
    case: Case, cpu: Any, folder: Callable[[Case], Path], load: Callable[..., Stepper], tmp_path: Path
) -> None:
    """The converter's file computes the same; the folder made of it holds the same tensors and means the same."""
    place = folder(case)
    if not (place / "tokenizer.json").exists():
        write_tokenizer(place, tokenizer_json(case.model.config.vocab))
    file, back = tmp_path / "m.gguf", tmp_path / "back"
    if gguf_schema_for(case.schema).find_conversion_loss(case.model.config):
        with pytest.raises(UnsupportedModel, match="which a GGUF file of"):
            from_hf(place)
        return
    converted = from_hf(place)
    if case.wide is not None:  # llama.cpp loads such files, as the comparison with it shows
        assert not [note for note in converted.notes if "refuses this file" in note]
    save_models([OutputFile(file, converted.model)])
    runners = [load(path, cpu, context=CONTEXT, eager=True) for path in (place, file)]
    wanted, found = (runner.step([(0, case.ids()[:9])])["logits"] for runner in runners)
    assert_close(found, wanted, "f32")  # numbers of the metadata are float32 in one of them
    save_folder(to_hf(file), back, shard_bytes=1 << 30)
    with open_safetensors(place) as wanted_files, open_safetensors(back) as found_files:
        assert set(found_files.names) == set(wanted_files.names)
        for name in set(wanted_files.names) - multiplied(case):
            assert_close(found_files.tensor(name).dequantize(), wanted_files.tensor(name).dequantize(), "f32")
    runners.append(load(back, cpu, context=CONTEXT, eager=True))
    assert_close(runners[2].step([(0, case.ids()[:9])])["logits"], found, "f32")
    for runner in runners:
        runner.close()


@pytest.mark.parametrize("listed", MODELS, ids=lambda listed: listed.module)
def test_a_family_is_tested_against_its_listed_sources(listed: Any, root: Path) -> None:
    mine = [case for case in EVERY if case.family == listed.module]
    found = {"numpy" if case.numpy else "transformers" for case in mine}
    assert {*listed.verified_against} == found | ({"llama.cpp"} if any(case.wide for case in mine) else set())
    row = (
        f"| {listed.title} | {', '.join(f'`{name}`' for name in listed.names)} | {', '.join(listed.verified_against)} |"
    )
    assert row in (root / "docs" / "models.md").read_text(encoding="utf-8")


@pytest.mark.all
@pytest.mark.parametrize("name", ["reference", "torch"])
@every_case
def test_logits_on_other_backends(
    case: Case, name: str, folder: Callable[[Case], Path], load: Callable[..., Stepper]
) -> None:
    backend = open_available(name)
    runner = load(folder(case), backend, context=CONTEXT, eager=False)
    assert_like(runner.logits(case.ids())[list(POSITIONS)], reference(case))
    runner.close()
    backend.close()


@pytest.mark.all
@pytest.mark.filterwarnings("ignore")
@every_case
def test_goldens_are_what_transformers_says_now(case: Case, tmp_path: Path) -> None:
    if case.numpy:
        pytest.skip("transformers has no such model")
    for module in ("torch", "transformers"):
        pytest.importorskip(module, reason=f"{module} is not installed: pip install 'sporelm[live]' compares live")
    sys.path.insert(0, str(Path(__file__).parent))
    try:
        from make_family_goldens import transformers_logits
    finally:
        sys.path.pop(0)
    assert_like(np.load(GOLDENS / f"{case.name}.npy"), transformers_logits(case, tmp_path)[list(POSITIONS)])


@pytest.fixture(scope="module")
def peer(root: Path) -> Any:
    """llama.cpp's library."""
    from peer_logits import load as load_peer

    place = os.environ.get("SPORE_PEER")
    if not place:
        pytest.skip("SPORE_PEER names no folder with llama.cpp's programs and libraries: bench/peer.sh builds one")
    return load_peer(Path(place), root)


@pytest.mark.all
@pytest.mark.parametrize(("form", "limit"), [("F16", 1e-3), ("Q4_K_M", 1e-2)])
@pytest.mark.parametrize("case", [case for case in CASES if case.wide], ids=lambda case: case.name)
def test_llama_cpp_says_the_same_of_the_same_file(
    case: Case, form: str, limit: float, peer: Any, cpu: Any, load: Callable[..., Stepper], tmp_path: Path
) -> None:
    from peer_logits import peer_logits

    wide = case.widened()
    place, plain, file = write_case(tmp_path / "model", wide), tmp_path / "plain.gguf", tmp_path / "m.gguf"
    write_tokenizer(place, tokenizer_json(wide.model.config.vocab))
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        made = plain if form != "F16" else file
        assert main(["gguf", "from-hf", str(place), "-o", str(made), "--type", "f16"]) == 0
        if form != "F16":
            assert main(["gguf", "quantize", str(plain), "-t", form, "-o", str(file)]) == 0
    runner = load(file, cpu, context=CONTEXT, eager=False)
    ours = runner.logits(wide.ids())
    runner.close()
    theirs = peer_logits(peer, file, wide.ids(), wide.model.config.vocab)
    assert float(np.ptp(theirs, axis=1).min()) >= 3
    # Of experts that are almost equal the two may choose different ones, as they round activations differently.
    assert_near_in_nat(ours, theirs, limit, mean=form != "F16" and wide.model.config.experts is not None)
