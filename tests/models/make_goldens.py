"""Writes what transformers computes for the models of `tiny_models` into goldens/. Needs torch and transformers:

python tests/models/make_goldens.py
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from tiny_models import COURSE_CHAT, ROPES, TINY, Tiny  # noqa: E402


def transformers_logits(tiny: Tiny) -> np.ndarray:
    """float32 [tokens, vocab] of transformers' own model with the same weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    values: dict[str, Any] = {key: value for key, value in tiny.config.items() if key != "architectures"}
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").to(torch.float32).eval()
    weights = {name: torch.from_numpy(array) for name, array in tiny.weights().items()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected, unexpected
    assert set(missing) <= {"lm_head.weight"}, missing
    if tiny.config["tie_word_embeddings"]:
        model.tie_weights()
    with torch.no_grad():
        return model(torch.tensor([tiny.ids()])).logits[0].float().numpy()


def main() -> None:
    for tiny in (*TINY, *ROPES, COURSE_CHAT):
        logits = transformers_logits(tiny)
        kept = logits[tiny.compared_positions(), :: tiny.vocab_step]
        path = HERE / "goldens" / f"{tiny.name}.npy"
        np.save(path, kept)
        print(f"{tiny.name}: {list(kept.shape)} in {path.stat().st_size} bytes, up to {np.abs(logits).max():.2f}")


if __name__ == "__main__":
    main()
