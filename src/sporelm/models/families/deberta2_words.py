"""What files call the numbers and the weights of DeBERTa v2 and v3, and what those that there are say."""

from dataclasses import dataclass
from typing import Any

from sporelm.checkpoints.family import HfClass
from sporelm.checkpoints.tensor_names import Names, Table
from sporelm.models.families.bert_names import KINDS, Said
from sporelm.models.text_facts import TextFacts

LEARNED = "distances"
PARTS = (
    *(f"attention.self.{part}_proj" for part in ("query", "key", "value")),
    *("attention.output.dense", "attention.output.LayerNorm"),
    *("intermediate.dense", "output.dense", "output.LayerNorm"),
)
SAID = Said("deberta.", "pooler.dense", "classifier", PARTS)
NUMBERS: dict[str, Any] = {"vocab_size": 128100, "hidden_size": 1536, "num_hidden_layers": 24}
NUMBERS |= {"num_attention_heads": 24, "intermediate_size": 6144, "max_position_embeddings": 512}
NUMBERS |= {"type_vocab_size": 0, "layer_norm_eps": 1e-7}
# What a folder means that does not say it, and what those that there are say.
SILENT = {"relative_attention": False, "share_att_key": False, "norm_rel_ebd": "none", "pos_att_type": "none"}
SILENT |= {"position_biased_input": True}
SPOKEN = {"relative_attention": True, "share_att_key": True, "norm_rel_ebd": "layer_norm", "pos_att_type": "c2p|p2c"}
SPOKEN |= {"position_biased_input": False}


@dataclass(frozen=True)
class DistanceFacts(TextFacts):
    """`buckets` columns for distances of either sign, the last for those of `farthest` and more."""

    buckets: int = 0
    farthest: int = 0


def table(front: str = "") -> Table:
    rows = Names(f"{LEARNED}.weight", "position_rel.weight", f"{front}encoder.rel_embeddings.weight")
    norm = (Names(f"{LEARNED}_norm.{k}", f"position_rel_norm.{k}", f"{front}encoder.LayerNorm.{k}") for k in KINDS)
    return (*SAID.table(front), rows, *norm)


CLASSES = tuple(
    HfClass(f"DebertaV2{name}", "deberta-v2", NUMBERS, names=table(front))
    for name, front in (("Model", ""), ("ForMaskedLM", ""), ("ForSequenceClassification", SAID.front))
)


def reworded(values: dict[str, Any]) -> dict[str, Any]:
    found = SILENT | {key: value for key, value in values.items() if value is not None}
    kinds = found["pos_att_type"]
    parts = kinds.split("|") if isinstance(kinds, str) else kinds if isinstance(kinds, list) else [kinds]
    return found | {"pos_att_type": "|".join(sorted(str(part).strip().lower() for part in parts))}
