"""Post-processors of transformers' tokenizer classes for encoders whose tokenizer.json has none.

The class is that in tokenizer_config.json, or else that of the model_type in config.json; other classes add nothing.
"""

from typing import Any, NamedTuple


class _Template(NamedTuple):
    """The default texts of the tokens around texts, and the templates for one text and for a pair."""

    begin: str
    end: str
    single: str
    pair: str


_BERT = _Template("[CLS]", "[SEP]", "{begin}:0 $A:0 {end}:0", "{begin}:0 $A:0 {end}:0 $B:1 {end}:1")
_ROBERTA = _Template("<s>", "</s>", "{begin}:0 $A:0 {end}:0", "{begin}:0 $A:0 {end}:0 {end}:0 $B:0 {end}:0")
_BY_CLASS = {
    **dict.fromkeys(("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer"), _BERT),
    **dict.fromkeys(("AlbertTokenizer", "DebertaV2Tokenizer"), _BERT),
    **dict.fromkeys(("RobertaTokenizer", "XLMRobertaTokenizer", "CamembertTokenizer", "MPNetTokenizer"), _ROBERTA),
}
_CLASS_BY_MODEL_TYPE = {
    **dict.fromkeys(("bert", "distilbert", "ernie", "megatron-bert", "nomic_bert"), "BertTokenizer"),
    "albert": "AlbertTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
    "electra": "ElectraTokenizer",
    "roberta": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "xlm-roberta-xl": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer",
    "mpnet": "MPNetTokenizer",
    "jina_embeddings_v3": "XLMRobertaTokenizer",
    "gte": "XLMRobertaTokenizer",
}


def get_tokenizer_class(config: dict[str, Any], model_type: object) -> str:
    """Return the class of a folder's tokenizer, without "Fast"; "" if neither file gives one."""
    default = _CLASS_BY_MODEL_TYPE.get(model_type) if isinstance(model_type, str) else None
    name = config.get("tokenizer_class", default)
    return name.removesuffix("Fast") if isinstance(name, str) else ""


def add_class_post_processor(tokenizer: Any, config: dict[str, Any], model_type: object, names: dict[str, str]) -> None:
    """Set the post-processor of a `tokenizers.Tokenizer` without one to that of its class, if the class has one.

    config        tokenizer_config.json
    model_type    that of config.json
    names         "cls_token", "sep_token", ... -> text
    """
    if tokenizer.post_processor is not None:
        return
    template = _BY_CLASS.get(get_tokenizer_class(config, model_type))
    if template is None:
        return
    begin = names.get("cls_token", template.begin)
    end = names.get("sep_token", template.end)
    tokens = [(text, tokenizer.token_to_id(text)) for text in (begin, end)]
    if any(token is None for _, token in tokens) or any(not text or " " in text for text, _ in tokens):
        return
    from tokenizers.processors import TemplateProcessing

    single, pair = (text.format(begin=begin, end=end) for text in (template.single, template.pair))
    tokenizer.post_processor = TemplateProcessing(single=single, pair=pair, special_tokens=tokens)
