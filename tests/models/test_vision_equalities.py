"""Pictures in prompts of every family that sees: results do not depend on how they are computed. More of it, on one
family, is in tests/system/test_images.py."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from close import assert_close
from cpu_targets import TARGETS
from drawn_families import FIRST, PICTURE, DrawnFamily, draw_pixels
from sporelm import LLM, SamplingParams
from sporelm.errors import RequestError
from sporelm.ops.number_types import UNIT_ROUNDOFF
from sporelm.ops.paged_attention import PAGE
from sporelm.tensor.dtype import BF16

TEXT = f"Look: {PICTURE} and {PICTURE} What differs? " + "Say it in a few words, one after the other, please."
SIZES = ((70, 41), (16, 90))
PARAMS = SamplingParams(max_tokens=3, temperature=0.0, ignore_eos=True, logprobs=2)
BUDGET = 7  # tokens of a step
SAMPLE = ("gemma3", "qwen3vl")  # the families on all targets: both ways; three positions and DeepStack
NARROWER = [
    pytest.param(name, target, id=f"{name}-{target}", marks=() if name in SAMPLE else pytest.mark.all)
    for target in TARGETS[1:]
    for name in FIRST
]


class LoadedFamily:
    """A family, its folder, and the logits of a prompt with pictures."""

    def __init__(self, family: DrawnFamily, folder: Path) -> None:
        self.family, self.folder = family, folder
        self.llm = self.open()
        self.ids = self.make_prompt(self.llm)
        self.logits = self.llm.logits(self.ids)
        rows = [each.num_rows for each in self.ids.images]
        # An image that is attended both ways is in one step.
        self.budget = max(*rows, BUDGET) if self.attends_both_ways else BUDGET

    @property
    def attends_both_ways(self) -> bool:
        return self.llm.engine.scheduler.attends_images_both_ways

    def open(self, **options: Any) -> LLM:
        return LLM(self.folder, **{"backend": "cpu", "threads": 1, "max_context": 512, "kv": "f32", **options})

    def make_prompt(self, llm: LLM, text: str = TEXT, sizes: tuple[tuple[int, int], ...] = SIZES) -> Any:
        pictures = [draw_pixels(*size, number) for number, size in enumerate(sizes)]
        return llm.prompt_with_images(text.replace(PICTURE, self.family.picture), pictures)

    def compute(self, **options: Any) -> np.ndarray:
        """The logits of the prompt by another engine."""
        with self.open(**options) as llm:
            return llm.logits(self.make_prompt(llm))


@pytest.fixture(scope="module")
def load_family(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], LoadedFamily]]:
    """Writes and loads a family, once."""
    loaded: dict[str, LoadedFamily] = {}

    def load(name: str) -> LoadedFamily:
        if name not in loaded:
            loaded[name] = LoadedFamily(FIRST[name], FIRST[name].write(tmp_path_factory.mktemp("family") / name))
        return loaded[name]

    yield load
    for each in loaded.values():
        each.llm.close()


@pytest.fixture(params=FIRST)
def loaded(request: pytest.FixtureRequest, load_family: Callable[[str], LoadedFamily]) -> LoadedFamily:
    return load_family(request.param)


def test_plans_compute_what_single_ops_compute(loaded: LoadedFamily) -> None:
    assert_close(loaded.compute(eager=True), loaded.logits, "exact")


def test_short_steps_compute_what_one_does(loaded: LoadedFamily) -> None:
    """Steps end inside pictures, unless their rows attend to each other in both directions."""
    assert len(loaded.ids) > 4 * loaded.budget
    assert_close(loaded.compute(token_budget=loaded.budget, max_batch=2), loaded.logits, "exact")
    if loaded.attends_both_ways:
        with loaded.open(token_budget=loaded.budget - 1, max_batch=2) as llm:
            ids = loaded.make_prompt(llm)
            with pytest.raises(RequestError, match="too many rows for a step"):
                llm.logits(ids)


def test_the_number_of_threads_changes_nothing(loaded: LoadedFamily) -> None:
    assert_close(loaded.compute(threads=3), loaded.logits, "exact")


def test_company_and_cached_prefixes_change_nothing(loaded: LoadedFamily) -> None:
    """Prompts with a picture first and last, and one of words alone."""
    with loaded.open(token_budget=loaded.budget + 9, max_batch=4) as busy:
        prompts = [
            loaded.ids,
            busy.prompt_ids("Only words."),
            loaded.make_prompt(busy, f"{PICTURE}a", SIZES[:1]),
            loaded.make_prompt(busy, f"What is it? {PICTURE}", SIZES[1:]),
        ]
        together = busy.generate(prompts, PARAMS)
    alone = [loaded.llm.generate([prompt], PARAMS)[0] for prompt in prompts]
    again = loaded.llm.generate([loaded.ids], PARAMS)[0]
    assert again.cached_tokens >= PAGE
    for one, other in zip([*alone, alone[0]], [*together, again], strict=True):
        assert (one.token_ids, one.logprobs) == (other.token_ids, other.logprobs)


def test_torch_computes_the_same(loaded: LoadedFamily) -> None:
    """Within rounding: 1e-5 of the range."""
    pytest.importorskip("torch", reason="torch is not installed: pip install 'sporelm[torch]' tests its back-end")
    span = np.ptp(loaded.logits)
    for options in ({}, {"eager": True}):
        found = loaded.compute(backend="torch", dtype="f32", **options)
        assert np.abs(found - loaded.logits).max() <= 1e-5 * span


def test_torch_computes_towers_in_bf16(loaded: LoadedFamily) -> None:
    """Image rows differ from those in float32 by the roundings of a few layers: by 8 of them at most."""
    pytest.importorskip("torch", reason="torch is not installed: pip install 'sporelm[torch]' tests its back-end")
    expected = compute_rows(loaded.llm)
    with loaded.open(backend="torch", dtype="bf16", eager=True) as llm:
        found = compute_rows(llm)
    assert np.isfinite(found).all()
    assert 0 < np.abs(found - expected).max() <= 8 * UNIT_ROUNDOFF[BF16] * np.abs(expected).max()


def compute_rows(llm: LLM) -> np.ndarray:
    """The image rows of one picture."""
    assert llm.image_reader is not None
    assert llm.engine.scheduler.image_encoder is not None
    images = llm.image_reader.processor.process(draw_pixels(*SIZES[0])).images
    return np.concatenate([llm.engine.scheduler.image_encoder.runner.compute(image) for image in images])


@pytest.mark.parametrize(("name", "target"), NARROWER)
def test_narrower_targets(
    name: str, target: str, load_family: Callable[[str], LoadedFamily], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each computes the same however it is run, and what the best does within rounding."""
    loaded = load_family(name)
    monkeypatch.setenv("SPORE_CPU_TARGET", target)
    whole = loaded.compute()
    for options in ({"eager": True}, {"token_budget": loaded.budget, "max_batch": 2, "threads": 3}):
        assert_close(loaded.compute(**options), whole, "exact")
    assert np.abs(whole - loaded.logits).max() <= 1e-5 * np.ptp(loaded.logits)
