"""Writes `tests/data/written`: session files and recordings that later versions must read.

They were made by the version whose files named a model by a hash of its configuration's `repr`; made again by a later
one they would test nothing. Run it only to add a case: PYTHONPATH=src:tests python tests/data/make_written_goldens.py
"""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from sporelm import LLM, SamplingParams
from written_models import TURNS, WRITTEN, write_adapter, write_attention, write_recurrent


def make(name: str, model: Path, adapter: Path | None = None) -> None:
    """A conversation of two turns and what it says after it was woken; all of it recorded."""
    params = SamplingParams(max_tokens=6, temperature=0.0, adapter=None if adapter is None else "red")
    wild = SamplingParams(max_tokens=6, temperature=0.9, top_p=0.9, seed=5, n=2, logit_bias={7: -1.5})
    session, recording = WRITTEN / f"{name}.session", WRITTEN / f"{name}.jsonl"
    adapters = [] if adapter is None else [adapter]
    with LLM(model, backend="reference", threads=1, max_context=256, max_batch=2, token_budget=48, kv="f16",
             record=recording, adapters=adapters) as llm:  # fmt: skip
        talk = llm.conversation()
        said = [list(talk.ask(text, params))[-1].completion for text in TURNS]
        held = len(said[-1].prompt_token_ids) + len(said[-1].token_ids) - 1
        talk.save(session)
        after = list(talk.ask("so it is", params))[-1].completion
        llm.generate(["a dog"], wild)
        if adapter is None:
            llm.embed(["it is so"])
        facts = {"held": held, "messages": len(talk.messages) - 2, "said": after.token_ids}
    (WRITTEN / f"{name}.json").write_text(json.dumps(facts) + "\n", encoding="ascii")


def main() -> None:
    WRITTEN.mkdir(exist_ok=True)
    with TemporaryDirectory() as place:
        attention = write_attention(Path(place) / "attention")
        make("attention", attention)
        make("recurrent", write_recurrent(Path(place) / "recurrent"))
        make("adapter", attention, write_adapter(Path(place) / "red"))


if __name__ == "__main__":
    sys.exit(main())
