"""What transformers' classes of tokenizers put around an encoder's texts, where tokenizer.json has no post-processor.

By the class that tokenizer_config.json names, or else that of the model's kind in config.json; others put nothing.
"""

from typing import Any, NamedTuple


class _Frame(NamedTuple):
    """The tokens around texts, by their names in tokenizer_config.json and by what the class calls them otherwise."""

    begin: str
    end: str
    single: str
    pair: str


_BERT = _Frame("[CLS]", "[SEP]", "{begin}:0 $A:0 {end}:0", "{begin}:0 $A:0 {end}:0 $B:1 {end}:1")
_ROBERTA = _Frame("<s>", "</s>", "{begin}:0 $A:0 {end}:0", "{begin}:0 $A:0 {end}:0 {end}:0 $B:0 {end}:0")
_OF_CLASS = {
    **dict.fromkeys(("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer"), _BERT),
    **dict.fromkeys(("AlbertTokenizer", "DebertaV2Tokenizer"), _BERT),
    **dict.fromkeys(("RobertaTokenizer", "XLMRobertaTokenizer", "CamembertTokenizer", "MPNetTokenizer"), _ROBERTA),
}
_OF_KIND = {
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


def class_of(config: dict[str, Any], kind: object) -> str:
    """The class of a folder's tokenizer, without "Fast"; "" where nothing tells it."""
    named = config.get("tokenizer_class", _OF_KIND.get(kind) if isinstance(kind, str) else None)
    return named.removesuffix("Fast") if isinstance(named, str) else ""


def frame(parsing: Any, config: dict[str, Any], kind: object, names: dict[str, str]) -> None:
    """Give a `tokenizers.Tokenizer` without a post-processor that of its class, if it has one.

    config   tokenizer_config.json; `kind` is config.json's model_type
    names    "cls_token", "sep_token", ... -> text
    """
    if parsing.post_processor is not None:
        return
    found = _OF_CLASS.get(class_of(config, kind))
    if found is None:
        return
    begin, end = names.get("cls_token", found.begin), names.get("sep_token", found.end)
    tokens = [(text, parsing.token_to_id(text)) for text in (begin, end)]
    if any(token is None for _, token in tokens) or any(not text or " " in text for text, _ in tokens):
        return
    from tokenizers.processors import TemplateProcessing

    single, pair = (text.format(begin=begin, end=end) for text in (found.single, found.pair))
    parsing.post_processor = TemplateProcessing(single=single, pair=pair, special_tokens=tokens)
