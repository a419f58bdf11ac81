"""A model that is closed while others use it."""

import threading
import time
from pathlib import Path

import pytest

from sporelm import LLM, SamplingParams
from sporelm.errors import RequestError


def test_closing_waits_for_the_step_and_ends_what_runs(shared: Path) -> None:
    """Whoever is in the middle of an answer hears of it, and no kernel runs on memory that is gone."""
    for number in range(4):
        llm = LLM(shared / "data" / "story", max_context=512, threads=2)
        heard: list[str] = []

        def ask(llm: LLM = llm, heard: list[str] = heard) -> None:
            try:
                found = llm.generate(["a " * 50] * 8, SamplingParams(max_tokens=400, ignore_eos=True))
                heard.extend(answer.finish_reason for answer in found)
            except RequestError as reason:
                heard.append(str(reason))

        asking = threading.Thread(target=ask)
        asking.start()
        time.sleep(0.02 * number)
        llm.close()
        asking.join(60)
        assert heard, "it has ended"
        assert set(heard) <= {"cancelled", "length", "this model is closed: open it again"}
        with pytest.raises(RequestError, match="closed"):
            llm.generate("a")
