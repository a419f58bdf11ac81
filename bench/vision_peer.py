"""Pictures in prompts beside llama.cpp's libmtmd: tiny random models of each family, from the same two GGUF files.

Usage: python bench/vision_peer.py DIR [--only NAME,...] [--type f16|f32|bf16|q8_0] [--json]
DIR is the folder in which bench/peer.sh --mtmd has built llama.cpp. Needs the package tokenizers (`sporelm[live]`).

rows    the largest difference of a row's value, over the range of values
kl      the largest divergence of the distributions of the next token, behind the picture and behind each token of the
        question that follows, in nats
other   the same for our own distributions if another picture is shown: how much a picture matters
three   `kl` of a prompt with three pictures, in front of it, and side by side
layout  whether both prompts have the same ids and the same number of rows

Where libmtmd makes a mistake, a second line of the model has ours make it too (tests/mtmd_models.py describes them).

The picture of these columns needs no resizing. The last three columns are of a picture that is resized.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / name) for name in ("src", "bench", "tests")]

import numpy as np  # noqa: E402
from mtmd import ROW, Pixels, run_mtmd  # noqa: E402
from numpy.typing import NDArray  # noqa: E402
from tower_files import Parameters, write_folder_tower  # noqa: E402

from drawn_vision import write_drawn_folder  # noqa: E402
from mtmd_models import CASES, CLASS_LAST, PeerCase  # noqa: E402
from sporelm import LLM  # noqa: E402
from sporelm.engine.prompt_images import PromptIds  # noqa: E402
from sporelm.models.tower import Tower  # noqa: E402
from sporelm.models.towers.llava import LlavaTower  # noqa: E402
from sporelm.models.towers.minicpmv import MinicpmvTower  # noqa: E402
from sporelm.quant import BF16, F16, F32, Q8_0  # noqa: E402
from sporelm.tools.hf.from_hf import from_hf  # noqa: E402
from sporelm.tools.hf.mmproj_from_hf import mmproj_from_hf  # noqa: E402
from sporelm.tools.output_file import OutputFile, save_models  # noqa: E402
from vision_folders import draw_picture  # noqa: E402

MAX_KL = 1e-3
TYPES = {each.name.lower(): each for each in (F32, F16, BF16, Q8_0)}
QUESTION = " What is in it?"
POSITIONS = "positions.weight"


class Comparison(NamedTuple):
    """Ours against llama.cpp's for one prompt; kl is NaN where the prompts differ, rows where their numbers do."""

    same_layout: bool
    rows: float
    kl: float

    def as_json(self) -> dict[str, Any]:
        return {name: None if np.isnan(value) else value for name, value in self._asdict().items()}


class CaseResult(NamedTuple):
    """The comparisons of a model.

    exact, resized   of a picture that needs no resizing, and of one that does
    other            the divergence between our distributions for two pictures
    several          of three pictures that need no resizing
    """

    exact: Comparison
    other: float
    several: Comparison
    resized: Comparison

    @property
    def is_close(self) -> bool:
        return all(each.same_layout and each.kl <= MAX_KL for each in (self.exact, self.several))


class Models(NamedTuple):
    """The files of a model. `rolled` is the tower with the positions of CLASS_LAST, if the case has that mistake."""

    text: Path
    mmproj: Path
    rolled: Path


def write_models(case: PeerCase, folder: Path, type_name: str) -> Models:
    """Write a model as a text model and its vision tower."""
    hf = write_drawn_folder(folder / "hf", case.config, case.tokens, case.placeholder, case.files)
    found = Models(*(folder / f"{name}.gguf" for name in Models._fields))
    text, mmproj = (convert(hf, type_name=type_name).model for convert in (from_hf, mmproj_from_hf))
    save_models([OutputFile(found.text, text), OutputFile(found.mmproj, mmproj)])
    if case.mistake == CLASS_LAST:
        write_folder_tower(hf, found.rolled, TYPES[type_name], roll_positions)
    return found


def roll_positions(parameters: Parameters) -> Parameters:
    """Return a tower's parameters with the positions of CLASS_LAST: the class embedding has the last."""
    return parameters | {POSITIONS: np.roll(parameters[POSITIONS], 1, axis=0)}


def repeat_mistake(tower: Tower[Any]) -> None:
    """Let a tower of ours, with the positions of the mistake, return what libmtmd returns for one tile. (InternVL's
    graph drops the right row.)"""
    if isinstance(tower, LlavaTower):
        tower.finish = lambda rows, image, host: np.concatenate([rows[2:], rows[:1]])  # type: ignore[method-assign]
    elif isinstance(tower, MinicpmvTower):
        tower.config = replace(tower.config, version=3)


def divergence(logits: NDArray[np.float32], others: NDArray[np.float32]) -> float:
    """Return the largest KL divergence of rows of logits, in nats: that of softmax(others) from softmax(logits)."""

    def log_softmax(values: NDArray[np.float32]) -> NDArray[np.float64]:
        shifted = values.astype(np.float64) - values.max(axis=1, keepdims=True)
        result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        return result

    first, second = log_softmax(logits), log_softmax(others)
    return float((np.exp(first) * (first - second)).sum(axis=1).max())


def make_prompt(case: PeerCase, mark: str, count: int) -> str:
    """Return a prompt with a mark for each of one or three pictures; three begin it, and two of them are adjacent."""
    return f"{case.front}{mark}{QUESTION}" if count == 1 else f"{mark}One{mark * 2}{QUESTION}"


def run_ours(
    llm: LLM, case: PeerCase, pictures: Sequence[Pixels]
) -> tuple[list[int], NDArray[np.float32], NDArray[np.float32]]:
    """Return the layout of a prompt, the rows of its pictures, and the logits behind them."""
    ids = llm.prompt_with_images(make_prompt(case, case.placeholder, len(pictures)), pictures)
    assert isinstance(ids, PromptIds)
    assert llm.engine.image_encoder is not None
    runner = llm.engine.image_encoder.runner
    rows = np.concatenate([runner.compute(each.image) for each in ids.images])
    layout = list(ids)
    for each in ids.images:
        layout[each.start : each.stop] = [ROW] * each.num_rows
    return layout, rows, llm.logits(ids)[ids.images[-1].stop :]


def compare(llm: LLM, case: PeerCase, models: Models, peer: Path, pictures: Sequence[Pixels]) -> Comparison:
    """Compare a prompt with one picture, or with three. Raises ValueError if llama.cpp fails."""
    layout, rows, logits = run_ours(llm, case, pictures)
    theirs = run_mtmd(peer, models.text, models.mmproj, make_prompt(case, case.theirs, len(pictures)), pictures)
    same = layout == theirs.layout
    count = case.same_rows or len(rows)
    deviation = float("nan")
    if case.same_rows or len(rows) == len(theirs.rows):
        wanted = theirs.rows[:count]
        deviation = float(np.abs(rows[:count, : wanted.shape[1]] - wanted).max() / np.ptp(wanted))
    return Comparison(same, deviation, divergence(theirs.logits, logits) if same else float("nan"))


def run_case(case: PeerCase, peer: Path, folder: Path, type_name: str, *, with_mistake: bool = False) -> CaseResult:
    """Write the model of a case, and compare three prompts. With `with_mistake`, ours makes that of libmtmd."""
    models = write_models(case, folder, type_name)
    mmproj = models.rolled if with_mistake and case.mistake == CLASS_LAST else models.mmproj
    with LLM(models.text, mmproj=mmproj, threads=2, max_context=1024, kv="f32") as llm:
        assert llm.engine.image_encoder is not None
        if with_mistake:
            repeat_mistake(llm.engine.image_encoder.runner.tower)
        exact, changed = (draw_picture(*case.exact, seed=seed) for seed in (0, 7))
        resized = draw_picture(*case.other, seed=1)
        effect = divergence(run_ours(llm, case, [exact])[2], run_ours(llm, case, [changed])[2])
        found = [compare(llm, case, models, peer, each) for each in ([exact], [exact, changed, exact], [resized])]
        return CaseResult(found[0], effect, found[1], found[2])


def list_runs(name: str) -> list[tuple[str, bool]]:
    """Return the lines of a model, and whether ours makes libmtmd's mistake in them."""
    mistake = CASES[name].mistake
    return [(name, False), *([(f"{name}, {mistake}", True)] if mistake else [])]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("peer", type=Path, metavar="DIR", help="folder with mtmd-driver, from bench/peer.sh --mtmd")
    parser.add_argument("--only", default=",".join(CASES), metavar="NAME,...", help="of these models")
    parser.add_argument("--type", default="f16", choices=TYPES, help="of the matrices")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    names = options.only.split(",")
    if unknown := [name for name in names if name not in CASES]:
        parser.error(f"--only: unknown {', '.join(unknown)}; choose from {', '.join(CASES)}")
    failed = []
    if not options.json:
        titles = [f"{name:>8}" for name in ("rows", "kl", "other", "three", "rows", "kl")]
        print(f"{'model':34}", *titles[:4], "layout |", *titles[4:], "layout (resized)")
    runs = [(name, *run) for name in names for run in list_runs(name)]
    for name, label, with_mistake in runs:
        with TemporaryDirectory() as place:
            result = run_case(CASES[name], options.peer, Path(place), options.type, with_mistake=with_mistake)
        case = CASES[name]
        if not (result.is_close or case.is_rows_only) and with_mistake == bool(case.mistake):
            failed.append(label)
        exact, resized = result.exact, result.resized
        if options.json:
            parts = {name: part.as_json() for name, part in result._asdict().items() if name != "other"}
            print(json.dumps({"model": label, "type": options.type, "other": result.other, **parts}), flush=True)
            continue
        values = (exact.rows, exact.kl, result.other, result.several.kl, resized.rows, resized.kl)
        numbers = [f"{value:8.1e}" for value in values]
        print(f"{label:34}", *numbers[:4], f"{say(exact)}  |", *numbers[4:], say(resized), flush=True)
    return 1 if failed else 0


def say(comparison: Comparison) -> str:
    """Return the word for a layout."""
    return "same " if comparison.same_layout else "other"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
