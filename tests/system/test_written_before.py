"""Session files and recordings that an earlier version wrote: they still wake, and still replay."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sporelm import LLM, SamplingParams
from sporelm.engine.recording_replay import Recording, Replay
from sporelm.errors import RequestError
from written_models import WRITTEN, write_adapter, write_attention, write_recurrent

NAMES = ("attention", "recurrent", "adapter")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("written")
    attention = write_attention(place / "attention")
    recurrent = write_recurrent(place / "recurrent")
    return {"attention": attention, "adapter": attention, "recurrent": recurrent, "red": write_adapter(place / "red")}


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture
def llm(name: str, models: dict[str, Path]) -> Iterator[LLM]:
    adapters = [models["red"]] if name == "adapter" else []
    with LLM(models[name], backend="reference", threads=1, max_batch=2, token_budget=48, kv="f16", adapters=adapters,
             max_context=256) as made:  # fmt: skip
        yield made


def facts(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((WRITTEN / f"{name}.json").read_text(encoding="ascii"))
    return found


def test_a_session_wakes_and_nothing_is_computed_again(name: str, llm: LLM) -> None:
    expected = facts(name)
    talk = llm.wake(WRITTEN / f"{name}.session")
    assert len(talk.messages) == expected["messages"]
    params = SamplingParams(max_tokens=6, temperature=0.0, adapter="red" if name == "adapter" else None)
    said = list(talk.ask("so it is", params))[-1].completion
    assert said is not None
    assert said.cached_tokens == expected["held"]
    assert said.token_ids == expected["said"]
    talk.close()


def test_a_session_that_is_written_again_differs_in_the_model_alone(name: str, llm: LLM, tmp_path: Path) -> None:
    """Keys, names and values are those of the earlier version, byte for byte."""
    before = (WRITTEN / f"{name}.session").read_bytes()
    talk = llm.wake(WRITTEN / f"{name}.session")
    talk.sleep(tmp_path / "again.session")
    after = (tmp_path / "again.session").read_bytes()
    assert header(before) == header(after)
    assert before[8 + length(before) :] == after[8 + length(after) :]


def length(data: bytes) -> int:
    return int.from_bytes(data[:8], "little")


def header(data: bytes) -> dict[str, Any]:
    """Return the header of a session file, without the hashes that stand for the model."""
    found: dict[str, Any] = json.loads(data[8 : 8 + length(data)])
    for key in ("model", "sha256"):
        del found["__metadata__"][key]
    return found


def test_a_recording_comes_out_the_same(name: str, llm: LLM) -> None:
    recording = Recording(WRITTEN / f"{name}.jsonl")
    result = Replay(recording, llm.loaded_engine.worker, compare_logits=False).run()
    assert (result.difference, result.stopped, result.is_truncated) == (None, None, False)
    assert result.steps > 10
    assert result.num_sampled > 20


def test_a_session_of_another_model_is_still_refused(models: dict[str, Path]) -> None:
    other = changed_model(WRITTEN / "attention.session", models["red"].parent / "other.session")
    with (
        LLM(models["attention"], backend="reference", threads=1, kv="f16", max_context=256) as llm,
        pytest.raises(RequestError, match="session of another model"),
    ):
        llm.wake(other)


def changed_model(path: Path, target: Path) -> Path:
    """A session file with another model's hash in it."""
    data = path.read_bytes()
    model = json.loads(data[8 : 8 + length(data)])["__metadata__"]["model"]
    target.write_bytes(data.replace(model.encode(), model[::-1].encode()))
    return target
