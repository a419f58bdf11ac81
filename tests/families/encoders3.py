"""BERT's kin with narrow embeddings, with one layer for all, and with positions apart from what stands there."""

from families.case import Case
from families.encoders import BERT, ODD, ONE, THREE, WIDE, encoder

ELECTRA = BERT | {"embedding_size": 24, "hidden_act": "gelu"}
ALBERT = BERT | {"embedding_size": 24, "num_hidden_layers": 3, "hidden_act": "gelu_new"}
DEBERTA = {key: value for key, value in BERT.items() if key != "position_embedding_type"}
DEBERTA |= {"type_vocab_size": 0, "layer_norm_eps": 1e-7, "hidden_act": "gelu", "pooler_hidden_act": "gelu"}
DEBERTA |= {"relative_attention": True, "share_att_key": True, "norm_rel_ebd": "layer_norm", "pos_att_type": "p2c|c2p"}
DEBERTA |= {"position_biased_input": False, "position_buckets": 16, "max_relative_positions": -1}
NEAR = {"position_buckets": 8, "max_relative_positions": 40, "pos_att_type": ["c2p", "p2c"]}
ERNIE = BERT | {"use_task_id": False}
TASKS = {"use_task_id": True, "task_type_vocab_size": 3}
T5 = {"d_model": 48, "d_kv": 8, "d_ff": 88, "num_layers": 2, "num_heads": 6, "n_positions": 96, "vocab_size": 131}
T5 |= {"feed_forward_proj": "relu", "layer_norm_epsilon": 1e-6, "is_encoder_decoder": True}
GATED = {"feed_forward_proj": "gated-gelu", "d_model": 70, "num_heads": 7, "d_kv": 12}
WIDE_T5 = {"d_model": 256, "d_ff": 512, "num_heads": 32, "d_kv": 8}
PLAIN_BERT = {key: value for key, value in BERT.items() if key != "position_embedding_type"}
XL = PLAIN_BERT | {"type_vocab_size": 1, "layer_norm_eps": 1e-5, "pad_token_id": 1}

CASES: tuple[Case, ...] = (
    encoder("electra", "ElectraModel", "electra", ELECTRA),
    encoder("electra-odd", "ElectraModel", "electra", ELECTRA | ODD | {"embedding_size": 70}),
    encoder("electra-scores", "ElectraForSequenceClassification", "electra", ELECTRA | ONE),
    encoder("albert", "AlbertModel", "albert", ALBERT),
    encoder("albert-odd", "AlbertModel", "albert", ALBERT | ODD | {"hidden_act": "gelu"}),
    encoder("albert-scores", "AlbertForSequenceClassification", "albert", ALBERT | THREE),
    encoder("ernie-bert", "ErnieModel", "ernie", ERNIE, WIDE),
    encoder("ernie-bert-odd-tasks", "ErnieModel", "ernie", ERNIE | ODD | TASKS),
    encoder("ernie-bert-scores", "ErnieForSequenceClassification", "ernie", ERNIE | ONE),
    encoder("t5-encoder", "T5EncoderModel", "t5", T5, WIDE_T5),
    encoder("t5-encoder-odd-gated", "T5EncoderModel", "t5", T5 | GATED),
    encoder("mt5-encoder", "MT5EncoderModel", "mt5", T5 | GATED, WIDE_T5),
    encoder("megatron-bert", "MegatronBertModel", "megatron-bert", PLAIN_BERT),
    encoder("megatron-bert-scores", "MegatronBertForSequenceClassification", "megatron-bert", PLAIN_BERT | ODD | ONE),
    encoder("xlm-roberta-xl", "XLMRobertaXLModel", "xlm-roberta-xl", XL),
    encoder("xlm-roberta-xl-scores", "XLMRobertaXLForSequenceClassification", "xlm-roberta-xl", XL | THREE),
    encoder("deberta2", "DebertaV2Model", "deberta-v2", DEBERTA),
    encoder("deberta2-odd", "DebertaV2Model", "deberta-v2", DEBERTA | ODD | {"type_vocab_size": 2} | NEAR),
    encoder("deberta2-scores", "DebertaV2ForSequenceClassification", "deberta-v2", DEBERTA | ONE),
)
