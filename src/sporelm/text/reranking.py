"""The prompt with which a model that generates is asked whether a document answers a query: by "yes" or by "no"."""

from collections.abc import Callable

from sporelm.errors import RequestError
from sporelm.text.tokenizer import Tokenizer

QUERY, DOCUMENT = "{query}", "{document}"
ANSWERS = ("yes", "no")
# As the card of Qwen3-Reranker has it; GGUF files carry it as the chat template "rerank".
QWEN3 = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
    f"<Query>: {QUERY}\n<Document>: {DOCUMENT}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)


def rerank_template(tokenizer: Tokenizer, *names: str) -> str | None:
    """The template of a reranker: its file's own, or that of the family that one of a model's names tells."""
    own = tokenizer.chat_templates.get("rerank")
    if own is not None:
        return own
    return QWEN3 if any("qwen3-reranker" in name.lower().replace(" ", "-") for name in names) else None


def rerank_prompt(tokenizer: Tokenizer, template: str, query: str, document: str) -> list[int]:
    """The ids of the template with both texts, in which no special tokens are looked for.

    Raises RequestError for a template without a place for each.
    """
    return rerank_prompts(tokenizer, template, query)(document)


def rerank_prompts(tokenizer: Tokenizer, template: str, query: str) -> Callable[[str], list[int]]:
    """`rerank_prompt` of one query with documents: what is around both is cut into tokens once. The two are not, for
    their tokens may depend on what stands beside them. Raises likewise."""
    if template.count(QUERY) != 1 or template.count(DOCUMENT) != 1:
        raise RequestError(f"the model's template for reranking has no place, or several, for {QUERY} or {DOCUMENT}")
    marks = [
        mark for mark in map(tokenizer.id_to_piece, sorted(tokenizer.special.control)) if mark and mark in template
    ]
    first, last = sorted((template.index(QUERY), template.index(DOCUMENT)))
    start = max((at + len(mark) for mark in marks if (at := template.rfind(mark, 0, first)) >= 0), default=0)
    start = line + 1 if (line := template.find("\n", start, first)) >= 0 else start
    stop = min((at for mark in marks if (at := template.find(mark, last)) >= 0), default=len(template))
    parts = _parts(template[start:stop])
    before, after = (tokenizer.encode(end, add_special_tokens=False) for end in (template[:start], template[stop:]))

    def prompt(document: str) -> list[int]:
        # Both at once: what one text says is no place for the other.
        middle = "".join({QUERY: query, DOCUMENT: document}.get(part, part) for part in parts)
        return [*before, *tokenizer.encode(middle, add_special_tokens=False, parse_special=False), *after]

    return prompt


def _parts(text: str) -> list[str]:
    """A text cut around its two places."""
    (first, name), (second, other) = sorted((text.index(each), each) for each in (QUERY, DOCUMENT))
    return [text[:first], name, text[first + len(name) : second], other, text[second + len(other) :]]


def answer_ids(tokenizer: Tokenizer) -> tuple[int, int]:
    """The tokens "yes" and "no". Raises RequestError where they are not one token each."""
    found = [tokenizer.encode(word, add_special_tokens=False, parse_special=False) for word in ANSWERS]
    if any(len(ids) != 1 for ids in found):
        raise RequestError("the model's vocabulary has no token 'yes' or 'no', with which it could answer")
    return found[0][0], found[1][0]
