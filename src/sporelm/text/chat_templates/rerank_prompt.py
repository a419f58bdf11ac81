"""Prompts that ask a generative reranker whether a document answers a query; it answers "yes" or "no"."""

from collections.abc import Callable

from sporelm.errors import RequestError
from sporelm.text.tokenizers.tokenizer import Tokenizer

QUERY, DOCUMENT = "{query}", "{document}"
ANSWERS = ("yes", "no")
# From the model card of Qwen3-Reranker; GGUF files have it as the chat template "rerank".
QWEN3 = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
    f"<Query>: {QUERY}\n<Document>: {DOCUMENT}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)


def find_rerank_template(tokenizer: Tokenizer, *names: str) -> str | None:
    """Return the template of a reranker: from its file, or by the family that one of the model's names gives."""
    template = tokenizer.chat_templates.get("rerank")
    if template is not None:
        return template
    return QWEN3 if any("qwen3-reranker" in name.lower().replace(" ", "-") for name in names) else None


def encode_rerank_prompt(tokenizer: Tokenizer, template: str, query: str, document: str) -> list[int]:
    """Return the ids of the template with both texts; special tokens are not parsed in them.

    Raises RequestError for a template without exactly one placeholder for each.
    """
    return make_rerank_encoder(tokenizer, template, query)(document)


def make_rerank_encoder(tokenizer: Tokenizer, template: str, query: str) -> Callable[[str], list[int]]:
    """Return a function that encodes the prompt of one query with a document. The text around both is encoded once; the
    two are not, since their tokens may depend on adjacent text. Raises as `encode_rerank_prompt`."""
    if template.count(QUERY) != 1 or template.count(DOCUMENT) != 1:
        raise RequestError(f"the model's rerank template must have one {QUERY} and one {DOCUMENT}")
    texts = map(tokenizer.id_to_piece, sorted(tokenizer.special.control))
    control_texts = [text for text in texts if text and text in template]
    first, last = sorted((template.index(QUERY), template.index(DOCUMENT)))
    ends = (at + len(text) for text in control_texts if (at := template.rfind(text, 0, first)) >= 0)
    start = max(ends, default=0)
    start = line + 1 if (line := template.find("\n", start, first)) >= 0 else start
    stops = (at for text in control_texts if (at := template.find(text, last)) >= 0)
    stop = min(stops, default=len(template))
    parts = _split_placeholders(template[start:stop])
    before, after = (tokenizer.encode(end, add_special_tokens=False) for end in (template[:start], template[stop:]))

    def encode(document: str) -> list[int]:
        # Both at once: a placeholder in one text is not replaced by the other.
        middle = "".join({QUERY: query, DOCUMENT: document}.get(part, part) for part in parts)
        return [*before, *tokenizer.encode(middle, add_special_tokens=False, parse_special=False), *after]

    return encode


def _split_placeholders(text: str) -> list[str]:
    """Split a text around its two placeholders."""
    (start, first), (end, second) = sorted((text.index(name), name) for name in (QUERY, DOCUMENT))
    return [text[:start], first, text[start + len(first) : end], second, text[end + len(second) :]]


def find_answer_ids(tokenizer: Tokenizer) -> tuple[int, int]:
    """Return the tokens "yes" and "no". Raises RequestError if they are not one token each."""
    answers = [tokenizer.encode(word, add_special_tokens=False, parse_special=False) for word in ANSWERS]
    if any(len(ids) != 1 for ids in answers):
        raise RequestError("the model's vocabulary has no token 'yes' or 'no' for the answer")
    return answers[0][0], answers[1][0]
