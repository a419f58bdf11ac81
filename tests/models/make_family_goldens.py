"""Writes what transformers computes for the models of `families` into goldens/families. Needs torch, transformers:

PYTHONPATH=src python tests/models/make_family_goldens.py [NAME ...]
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
# Buffers that follow from the configuration, though transformers looks for them in folders: MiniMax-Text-01's.
DERIVED = ("slope_rate", "query_decay", "key_decay", "diagonal_decay")
GOLDENS = HERE / "goldens" / "families"
# Their poolers are for training.
POOLED = ("bert", "roberta", "xlm-roberta", "camembert", "mpnet", "jina_embeddings_v3", "albert", "ernie")
POOLED += ("megatron-bert", "xlm-roberta-xl")
sys.path.insert(0, str(HERE.parent))

from families import EVERY, POSITIONS, WHOLE, Case, write_case  # noqa: E402
from sporelm.checkpoints.tensor_names import find_unread  # noqa: E402
from sporelm.checkpoints.text_config import MULTIMODAL_TENSORS  # noqa: E402


def transformers_logits(case: Case, folder: Path) -> np.ndarray:
    """float32 [tokens, vocab] of transformers' own model, read from the folder as users read one.

    Of an encoder: a vector for each token, [tokens, width], or the scores of its head, [1, labels].
    """
    if case.reads:
        return encoded(case, folder)
    return decoded(case, write_case(folder, case))


def decoded(case: Case, folder: Path) -> np.ndarray:
    """float32 [tokens, vocab] of a case's prompt, by the folder of its model."""
    import torch
    import transformers
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    _add_idle_experts(case, folder)
    config = json.loads((folder / "config.json").read_text())
    writes = config["model_type"] in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    kind: Any = AutoModelForCausalLM if writes else getattr(transformers, config["architectures"][0])
    plain: dict[str, Any] = {"attn_implementation": "eager", "dtype": torch.float32}
    if case.config.get("alibi"):
        plain["attn_implementation"] = "sdpa"  # Falcon's eager attention adds linear biases twice
    if case.model.config.experts:
        plain["experts_implementation"] = "eager"  # the usual one wants widths of whole blocks
    model, info = kind.from_pretrained(folder, output_loading_info=True, **plain)
    unread = find_unread(info["missing_keys"], "hf", MULTIMODAL_TENSORS)  # vision tensors have no weights here
    info["missing_keys"] = set(info["missing_keys"]) - unread
    told = {kind: [each for each in found if not str(each).endswith(DERIVED)] for kind, found in info.items()}
    strange = {kind: found for kind, found in told.items() if found}
    assert not strange, f"{case.name}: transformers says of the folder's tensors: {strange}"
    with torch.no_grad():
        found: np.ndarray = model.eval()(torch.tensor([case.ids()])).logits[0].float().numpy()
    return found


def _add_idle_experts(case: Case, folder: Path) -> None:
    """LongCat-Flash's experts that compute nothing have gates in transformers; their values have no effect."""
    if not case.config.get("zero_expert_num"):
        return
    from safetensors.numpy import load_file, save_file

    path, count = folder / "model.safetensors", case.config["n_routed_experts"]
    tensors = load_file(path)
    for name in [name for name in tensors if ".experts.0." in name and "down" not in name]:
        for more in range(count, count + case.config["zero_expert_num"]):
            tensors[name.replace(".experts.0.", f".experts.{more}.")] = tensors[name]
    save_file(tensors, path, metadata={"format": "pt"})


def encoded(case: Case, folder: Path) -> np.ndarray:
    """Return an encoder's output for its prompt, in two parts where it has token types."""
    import torch
    import transformers
    from transformers import AutoModel, AutoModelForSequenceClassification

    write_case(folder, case)
    scores = case.config["architectures"][0].endswith("ForSequenceClassification")
    kind: Any = AutoModelForSequenceClassification if scores else AutoModel
    if case.config["architectures"][0].endswith("EncoderModel"):  # half of what the configuration is of
        kind = getattr(transformers, case.config["architectures"][0])
    plain: dict[str, Any] = {"attn_implementation": "eager", "dtype": torch.float32}
    if not scores and case.config["model_type"] in POOLED:
        plain["add_pooling_layer"] = False
    model, info = kind.from_pretrained(folder, output_loading_info=True, **plain)
    strange = {name: found for name, found in info.items() if found}
    assert not strange, f"{case.name}: transformers says of the folder's tensors: {strange}"
    given = {"input_ids": torch.tensor([case.ids()])}
    if case.config.get("type_vocab_size"):
        given["token_type_ids"] = torch.tensor([case.types()])
    with torch.no_grad():
        made = model.eval()(**given)
    found: np.ndarray = (made.logits if scores else made.last_hidden_state[0]).float().numpy()
    return found


def main(names: list[str]) -> None:
    GOLDENS.mkdir(exist_ok=True)
    for case in (*EVERY, *WHOLE):
        if case.numpy or (names and case.name not in names):
            continue
        with tempfile.TemporaryDirectory() as folder:
            logits = transformers_logits(case, Path(folder))
        path = GOLDENS / f"{case.name}.npy"
        np.save(path, logits if len(logits) == 1 else logits[list(POSITIONS)])
        print(f"{case.name}: {path.stat().st_size} bytes, from {logits.min():.2f} to {logits.max():.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])
