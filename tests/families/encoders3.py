"""BERT's kin with narrow embeddings, with one layer for all, and with positions apart from what stands there."""

from families.case import Case
from families.encoders import BERT, ODD, ONE, THREE, encoder

ELECTRA = BERT | {"embedding_size": 24, "hidden_act": "gelu"}
ALBERT = BERT | {"embedding_size": 24, "num_hidden_layers": 3, "hidden_act": "gelu_new"}

CASES: tuple[Case, ...] = (
    encoder("electra", "ElectraModel", "electra", ELECTRA),
    encoder("electra-odd", "ElectraModel", "electra", ELECTRA | ODD | {"embedding_size": 70}),
    encoder("electra-scores", "ElectraForSequenceClassification", "electra", ELECTRA | ONE),
    encoder("albert", "AlbertModel", "albert", ALBERT),
    encoder("albert-odd", "AlbertModel", "albert", ALBERT | ODD | {"hidden_act": "gelu"}),
    encoder("albert-scores", "AlbertForSequenceClassification", "albert", ALBERT | THREE),
)
