"""BERT and what came of it."""

from typing import Any

from families.case import Case

SHAPE: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 88,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "max_position_embeddings": 96,
    "vocab_size": 131,
}
ODD = {"hidden_size": 70, "num_attention_heads": 7}  # heads of 10
WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8}
BERT = SHAPE | {"type_vocab_size": 2, "layer_norm_eps": 1e-12, "position_embedding_type": "absolute"}
ROBERTA = BERT | {"type_vocab_size": 1, "layer_norm_eps": 1e-5, "pad_token_id": 1}
NOMIC = SHAPE | {"type_vocab_size": 2, "layer_norm_eps": 1e-12, "rope_parameters": {"rope_theta": 1000.0}}
MODERN = SHAPE | {"num_hidden_layers": 4, "norm_eps": 1e-5, "local_attention": 12, "pad_token_id": 0}
MODERN |= {"bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
KINDS = ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]
JINA = BERT | {"position_embedding_type": "alibi", "feed_forward_type": "geglu"}
PLAIN = {"query_pre_attn_scalar": 32}
ONE = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
THREE = {"id2label": {str(n): f"L{n}" for n in range(3)}, "label2id": {f"L{n}": n for n in range(3)}}


def encoder(
    name: str, model: str, model_type: str, config: dict[str, Any], wide: dict[str, Any] | None = None, **more: Any
) -> Case:
    return Case(name, {"architectures": [model], "model_type": model_type, **config}, wide, reads=True, **more)


GEMMA = SHAPE | {"head_dim": 16, "num_key_value_heads": 1, "query_pre_attn_scalar": 16, "sliding_window": 24}
GEMMA |= {"num_hidden_layers": 7, "use_bidirectional_attention": True, "hidden_activation": "gelu_pytorch_tanh"}
GEMMA |= {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rms_norm_eps": 1e-6}
GEMMA_KINDS = ["full_attention" if layer == 2 else "sliding_attention" for layer in range(7)]
GEMMA_ODD = ODD | {"head_dim": 10, "query_pre_attn_scalar": 10, "layer_types": GEMMA_KINDS}

CAMEMBERT = ROBERTA | {"max_position_embeddings": 98}
DISTILBERT = {"dim": 48, "hidden_dim": 88, "n_layers": 2, "n_heads": 6, "activation": "gelu"}
DISTILBERT |= {"max_position_embeddings": 96, "vocab_size": 131}
WIDE_DISTILBERT = {"dim": 256, "hidden_dim": 512, "n_heads": 8}

MPNET = SHAPE | {"layer_norm_eps": 1e-12, "pad_token_id": 1, "max_position_embeddings": 98, "hidden_act": "gelu"}

EURO = SHAPE | {"num_key_value_heads": 2, "rms_norm_eps": 1e-5, "rope_theta": 250000.0, "pad_token_id": 0}
EURO |= {"hidden_act": "silu", "mask_token_id": 4, "bos_token_id": 2, "eos_token_id": 3}
EURO_SCORES = "EuroBertForSequenceClassification"

GTE = SHAPE | {"type_vocab_size": 1, "layer_norm_eps": 1e-12, "pad_token_id": 1, "hidden_act": "gelu"}

NOMIC_MOE = {"n_embd": 48, "n_inner": 88, "n_layer": 4, "n_head": 6, "n_positions": 96, "max_trained_positions": 96}
NOMIC_MOE |= {"num_experts": 5, "moe_top_k": 2, "moe_every_n_layers": 2, "activation_function": "gelu"}
NOMIC_MOE |= {"qkv_proj_bias": True, "mlp_fc1_bias": True, "mlp_fc2_bias": True, "layer_norm_epsilon": 1e-5}
NOMIC_MOE |= {"rotary_emb_base": 10000.0, "type_vocab_size": 1, "vocab_size": 131}
WIDE_NOMIC = {"n_embd": 256, "n_inner": 512, "n_head": 8, "num_experts": 8}
WIDE_NOMIC |= {"moe_experts_bias": False}  # llama.cpp knows none

JINA3 = SHAPE | {"type_vocab_size": 1, "layer_norm_eps": 1e-5, "pad_token_id": 1, "hidden_act": "gelu"}
JINA3 |= {"rope_parameters": {"rope_type": "default", "rope_theta": 20000.0}}

CASES = (
    encoder("eurobert", "EuroBertModel", "eurobert", EURO, WIDE),
    encoder("eurobert-odd", "EuroBertModel", "eurobert", EURO | ODD | {"num_key_value_heads": 1}),
    encoder("eurobert-late", EURO_SCORES, "eurobert", EURO | ONE | {"classifier_pooling": "late"}),
    encoder("eurobert-mean", EURO_SCORES, "eurobert", EURO | THREE | {"classifier_pooling": "mean"}),
    encoder("eurobert-bos", EURO_SCORES, "eurobert", EURO | ONE | {"classifier_pooling": "bos"}),
    encoder("gemma-embedding", "Gemma3TextModel", "gemma3_text", GEMMA, WIDE | {"head_dim": 32} | PLAIN),
    encoder("gemma-embedding-odd", "Gemma3TextModel", "gemma3_text", GEMMA | GEMMA_ODD),
    encoder("bert", "BertModel", "bert", BERT, WIDE),
    encoder("bert-odd", "BertModel", "bert", BERT | ODD | {"type_vocab_size": 1}),
    encoder("bert-scores", "BertForSequenceClassification", "bert", BERT | ONE, WIDE),
    encoder("bert-labels", "BertForSequenceClassification", "bert", BERT | THREE, WIDE),
    encoder("camembert", "CamembertModel", "camembert", CAMEMBERT, WIDE),
    encoder("camembert-scores", "CamembertForSequenceClassification", "camembert", CAMEMBERT | THREE),
    encoder("distilbert", "DistilBertModel", "distilbert", DISTILBERT, WIDE_DISTILBERT),
    encoder("distilbert-odd", "DistilBertModel", "distilbert", DISTILBERT | {"dim": 70, "n_heads": 7}),
    encoder("distilbert-scores", "DistilBertForSequenceClassification", "distilbert", DISTILBERT | ONE),
    encoder("gte", "GteModel", "gte", GTE | {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
    encoder("gte-odd", "GteModel", "gte", GTE | ODD | {"type_vocab_size": 0}),
    encoder("gte-types", "GteModel", "gte", GTE | {"type_vocab_size": 2}),
    encoder("gte-scores", "GteForSequenceClassification", "gte", GTE | ONE),
    encoder("jina-bert-v2", "JinaBertModel", "bert", JINA, WIDE, numpy="jina_bert_v2"),
    encoder("jina-bert-v2-odd", "JinaBertModel", "bert", JINA | ODD, numpy="jina_bert_v2"),
    encoder("mpnet", "MPNetModel", "mpnet", MPNET),
    encoder("mpnet-odd", "MPNetModel", "mpnet", MPNET | ODD),
    encoder("mpnet-scores", "MPNetForSequenceClassification", "mpnet", MPNET | ONE),
    encoder("jina-bert-v3", "JinaEmbeddingsV3Model", "jina_embeddings_v3", JINA3, WIDE),
    encoder("jina-bert-v3-odd", "JinaEmbeddingsV3Model", "jina_embeddings_v3", JINA3 | ODD | {"type_vocab_size": 2}),
    encoder("jina-bert-v3-scores", "JinaEmbeddingsV3ForSequenceClassification", "jina_embeddings_v3", JINA3 | ONE),
    encoder("roberta", "RobertaModel", "roberta", ROBERTA),
    encoder("roberta-scores", "RobertaForSequenceClassification", "roberta", ROBERTA | ONE),
    encoder("xlm-roberta", "XLMRobertaModel", "xlm-roberta", ROBERTA, WIDE),
    encoder("nomic-bert", "NomicBertModel", "nomic_bert", NOMIC, WIDE),
    encoder("nomic-bert-odd", "NomicBertModel", "nomic_bert", NOMIC | ODD),
    encoder("nomic-moe", "NomicBertModel", "nomic_bert", NOMIC_MOE, WIDE_NOMIC, numpy="nomic_bert_moe"),
    encoder(
        "nomic-moe-odd", "NomicBertModel", "nomic_bert", NOMIC_MOE | {"n_embd": 70, "n_head": 7}, numpy="nomic_bert_moe"
    ),
    encoder("modern-bert", "ModernBertModel", "modernbert", MODERN, WIDE),
    encoder("modern-bert-odd", "ModernBertModel", "modernbert", MODERN | ODD | {"layer_types": KINDS}),
    encoder("modern-bert-cls", "ModernBertForSequenceClassification", "modernbert", MODERN | ONE, WIDE),
    encoder(
        "modern-bert-mean",
        "ModernBertForSequenceClassification",
        "modernbert",
        MODERN | THREE | {"classifier_pooling": "mean"},
        WIDE,
    ),
    encoder("xlm-roberta-scores", "XLMRobertaForSequenceClassification", "xlm-roberta", ROBERTA | ONE, WIDE),
)
