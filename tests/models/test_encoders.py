"""Every encoder of `families` against its reference, against itself run otherwise, and as GGUF file.

With --all: also llama.cpp on the same file where SPORE_PEER names one.
"""

import contextlib
import io
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from available import open_available
from close import assert_close
from encoder_files import write_encoder
from families import ENCODERS, POSITIONS, Case
from sporelm.checkpoints import open_model
from sporelm.checkpoints.loader import load_parameters
from sporelm.cli.main import main
from sporelm.engine.encoder_runner import EncoderRunner, EncoderText
from sporelm.errors import UnsupportedModel
from sporelm.files.safetensors import open_safetensors
from sporelm.models import Encoder, build
from sporelm.tools.hf.from_hf import from_hf
from sporelm.tools.hf.save_folder import save_folder
from sporelm.tools.hf.to_hf import to_hf
from sporelm.tools.output_file import OutputFile, save_models

GOLDENS = Path(__file__).parent / "goldens" / "families"
every_case = pytest.mark.parametrize("case", ENCODERS, ids=lambda case: case.name)
Run = tuple[Case, EncoderRunner, np.ndarray]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], Path]:
    written: dict[str, Path] = {}

    def write(case: Case) -> Path:
        if case.name not in written:
            written[case.name] = write_encoder(tmp_path_factory.mktemp(case.name), case)
        return written[case.name]

    return write


def opened_runner(path: Path, backend: Any, *, eager: bool = False) -> EncoderRunner:
    source = open_model(path)
    model = build(source.config)
    assert isinstance(model, Encoder)
    weights = load_parameters(source, model.params(), backend)
    source.close()
    context = source.config.context_length
    tables = model.tables(context) | model.learned_tables(weights, context)
    learned = model.learned_weights(weights)
    weights |= {name: backend.tensor(table) for name, table in tables.items()}
    weights |= {name: backend.pack(each) for name, each in learned.items()}
    return EncoderRunner(model, weights, backend, max_tokens=600, max_texts=4, eager=eager)


def prompt_text(case: Case) -> EncoderText:
    types = case.types()
    return EncoderText(case.ids(), types.index(1) if 1 in types else None)


def run_texts(runner: EncoderRunner, texts: Sequence[EncoderText]) -> list[np.ndarray]:
    """Return the model's output for each text: a row for each token, or with a head the scores, [1, labels]."""
    if runner.model.classifier is None:
        return [np.array(rows) for rows in runner.embed(texts)]
    return [np.array(scores)[None] for scores in runner.score(texts)]


@pytest.fixture(scope="module", params=ENCODERS, ids=lambda case: case.name)
def run(request: pytest.FixtureRequest, cpu: Any, folder: Callable[[Case], Path]) -> Iterator[Run]:
    """A case, its model planned, and what it makes of the prompt alone."""
    case: Case = request.param
    runner = opened_runner(folder(case), cpu)
    yield case, runner, run_texts(runner, [prompt_text(case)])[0]
    runner.close()


def reference(case: Case) -> np.ndarray:
    """[POSITIONS, width], or [1, labels]."""
    if case.numpy:
        forward: Callable[..., np.ndarray] = import_module(f"models.paper.{case.numpy}").forward
        return forward(case.config, case.tensors(), case.ids(), case.types())[list(POSITIONS)]
    found: np.ndarray = np.load(GOLDENS / f"{case.name}.npy")
    return found


def assert_like(found: np.ndarray, case: Case) -> None:
    """Within 1e-4 of the reference's range."""
    expected = reference(case)
    span = max(1.0, float(np.ptp(expected)))
    found = found if len(expected) == 1 else found[list(POSITIONS)]
    assert_close(found / span, expected / span, "logits")


def test_what_it_makes_is_the_references(run: Run) -> None:
    case, _, alone = run
    assert_like(alone, case)


def test_eager_is_planned(run: Run, cpu: Any, folder: Callable[[Case], Path]) -> None:
    """The same in each step bucket."""
    case, planned, alone = run
    eager = opened_runner(folder(case), cpu, eager=True)
    assert_close(run_texts(eager, [prompt_text(case)])[0], alone, "exact")
    for count in (1, 9):
        text = [EncoderText(case.ids()[:count])]
        assert_close(run_texts(eager, text)[0], run_texts(planned, text)[0], "exact")


def test_alone_is_among_others(run: Run) -> None:
    case, runner, alone = run
    ids = case.ids()
    found = run_texts(runner, [EncoderText(ids[:1]), prompt_text(case), EncoderText(ids[3:30], 20), prompt_text(case)])
    assert_close(found[1], alone, "exact")
    assert_close(found[3], alone, "exact")
    assert_close(found[2], run_texts(runner, [EncoderText(ids[3:30], 20)])[0], "exact")


UNIGRAM = ("xlm-roberta", "xlm-roberta-xl", "camembert", "jina_embeddings_v3")


def pre_of(case: Case) -> str | None:
    """The tests' unigram tokenizer lacks a table of characters: it is taken as it is."""
    return "default" if case.config["model_type"] in UNIGRAM else None


@every_case
def test_as_a_gguf_file_and_back(case: Case, cpu: Any, folder: Callable[[Case], Path], tmp_path: Path) -> None:
    """The converter's file computes the same; the folder made of it holds the same tensors and means the same."""
    place, file, back = folder(case), tmp_path / "m.gguf", tmp_path / "back"
    ernie = case.config["model_type"] == "ernie"
    if reason := case.gguf_schema.find_conversion_loss(case.model.config):
        with pytest.raises(UnsupportedModel, match=re.escape(f"{reason}, which a GGUF file of")):
            from_hf(place, pre=pre_of(case))
        return
    save_models([OutputFile(file, from_hf(place, pre=pre_of(case)).model)])
    runners = [opened_runner(path, cpu, eager=True) for path in (place, file)]
    wanted, found = (run_texts(runner, [prompt_text(case)])[0] for runner in runners)
    assert_close(found, wanted, "f32")  # numbers of the metadata are float32 in one of them
    save_folder(to_hf(file), back, shard_bytes=1 << 30)
    with open_safetensors(place) as wanted_files, open_safetensors(back) as found_files:
        # ERNIE's is a folder of BERT then, whose class has another name in front.
        found_names = {name.replace("bert.", "ernie.", 1) if ernie else name: name for name in found_files.names}
        assert set(found_names) == set(wanted_files.names)
        for name, own in found_names.items():
            assert_close(found_files.tensor(own).dequantize(), wanted_files.tensor(name).dequantize(), "f32")
    again = opened_runner(back, cpu, eager=True)
    assert_close(run_texts(again, [prompt_text(case)])[0], found, "f32")


@pytest.mark.parametrize("kept", [("encoder.embed_tokens.weight",), ("encoder.embed_tokens.weight", "shared.weight")])
def test_t5s_embedding_has_two_names(
    kept: tuple[str, ...], cpu: Any, folder: Callable[[Case], Path], tmp_path: Path
) -> None:
    """Folders have one of them, or both; the decoder's tensors are not read."""
    case = next(case for case in ENCODERS if case.name == "t5-encoder")
    place = write_encoder(tmp_path / "other", case)
    tensors = case.tensors()
    table = tensors.pop("shared.weight")
    more = {"decoder.final_layer_norm.weight": np.ones(48, np.float32)}
    save_file(tensors | dict.fromkeys(kept, table) | more, place / "model.safetensors", metadata={"format": "pt"})
    wanted, found = (
        run_texts(opened_runner(path, cpu, eager=True), [prompt_text(case)])[0] for path in (folder(case), place)
    )
    assert_close(found, wanted, "exact")


def test_a_head_of_one_layer(cpu: Any, folder: Callable[[Case], Path], tmp_path: Path) -> None:
    """llama.cpp's converter leaves BERT's pooler out."""
    case, file = next(case for case in ENCODERS if case.name == "bert-labels"), tmp_path / "m.gguf"
    model = from_hf(folder(case)).model
    kept = [tensor for tensor in model.tensors if tensor.name not in ("cls.weight", "cls.bias")]
    save_models([OutputFile(file, replace(model, tensors=kept))])
    runner, weights = opened_runner(file, cpu), case.weights()
    first = np.array(runner.embed([prompt_text(case)])[0][0], np.float64)
    expected = weights["classifier.weight"].astype(np.float64) @ first + weights["classifier.bias"]
    assert_close(runner.score([prompt_text(case)])[0], expected, "f32")
    runner.close()


@pytest.mark.parametrize("front", ["gte.", "new.gte."])
def test_a_reranker_of_gte_as_transformers_5_writes_it(
    cpu: Any, folder: Callable[[Case], Path], tmp_path: Path, front: str
) -> None:
    case = next(case for case in ENCODERS if case.name == "gte-scores")
    place = copytree(folder(case), tmp_path / "written")
    tensors = {name.replace("new.", front, 1): each for name, each in case.tensors().items()}
    save_file(tensors, place / "model.safetensors")
    runners = [opened_runner(each, cpu) for each in (folder(case), place)]
    found = [runner.score([prompt_text(case)])[0] for runner in runners]
    assert_close(found[1], found[0], "exact")
    for runner in runners:
        runner.close()


@pytest.mark.all
@pytest.mark.parametrize("name", ["reference", "torch"])
@every_case
def test_on_other_backends(case: Case, name: str, folder: Callable[[Case], Path]) -> None:
    backend = open_available(name)
    runner = opened_runner(folder(case), backend)
    assert_like(run_texts(runner, [prompt_text(case)])[0], case)
    runner.close()
    backend.close()


@pytest.fixture(scope="module")
def peer(root: Path) -> Any:
    """llama.cpp's library."""
    from peer_logits import load as load_peer

    place = os.environ.get("SPORE_PEER")
    if not place:
        pytest.skip("SPORE_PEER names no folder with llama.cpp's programs and libraries: bench/peer.sh builds one")
    return load_peer(Path(place), root)


@pytest.mark.all
@pytest.mark.parametrize(("form", "limit"), [("F16", 1e-3), ("Q4_K_M", 2e-2)])
@pytest.mark.parametrize("case", [case for case in ENCODERS if case.wide], ids=lambda case: case.name)
def test_llama_cpp_makes_the_same_of_the_same_file(
    case: Case, form: str, limit: float, peer: Any, cpu: Any, tmp_path: Path
) -> None:
    """Within a share of the range; llama.cpp's GELU is the one by a tanh, looked up in a table of halves."""
    from peer_logits import peer_rows, peer_scores

    wide = case.widened()
    place, plain, file = write_encoder(tmp_path / "model", wide), tmp_path / "plain.gguf", tmp_path / "m.gguf"
    save_models([OutputFile(plain if form != "F16" else file, from_hf(place, type_name="f16", pre=pre_of(case)).model)])
    if form != "F16":
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            assert main(["gguf", "quantize", str(plain), "-t", form, "-o", str(file)]) == 0
    runner, config = opened_runner(file, cpu), wide.model.config
    ours = run_texts(runner, [EncoderText(wide.ids())])[0]
    runner.close()
    if config.head_labels:
        theirs = peer_scores(peer, file, wide.ids(), config.head_labels)[None]
    else:
        theirs = peer_rows(peer, file, wide.ids(), config.width)
    span = max(1.0, float(np.ptp(theirs)))
    apart = np.abs(ours - theirs).max(axis=-1) / span
    # Of quantized mixtures the mean token's: where two experts are almost equal, either may be chosen.
    assert (apart.mean() if config.experts and form != "F16" else apart.max()) <= limit
