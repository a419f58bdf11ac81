"""RWKV's vocabularies ("rwkv") from the metadata of GGUF files; the rules are llama.cpp's (llama-vocab.cpp).

One rule is ours: letters never become a control token, so that plain text cannot forge one.
"""

from collections.abc import Mapping
from typing import Any

from sporelm.text.gguf_roles import chat_templates, framing, named_ids, roles_of, special_tokens_of
from sporelm.text.gguf_spm import check_lengths
from sporelm.text.gguf_vocabulary import Vocabulary
from sporelm.text.longest_match import LongestMatch, unescaped
from sporelm.text.sentencepiece_engine import SentencePieceEngine
from sporelm.text.token_bytes import ByteDecoding
from sporelm.text.tokenizer import Tokenizer

# What files of llama.cpp's older converters call their chat template by, and what llama.cpp does for it.
WORLD = "rwkv-world"
WORLD_TEMPLATE = """{%- set names = {'system': 'System', 'user': 'User', 'assistant': 'Assistant'} -%}
{%- for message in messages if message['role'] in names -%}
{{- names[message['role']] + ': ' + (message['content'] or '')|trim + '\\n\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- 'Assistant:' -}}{%- endif -%}"""


def rwkv_of_gguf(metadata: Mapping[str, Any], label: str) -> Tokenizer:
    """The tokenizer of an "rwkv" vocabulary. Raises ModelFileError for a damaged one."""
    vocabulary = Vocabulary(metadata, label)
    check_lengths(vocabulary)
    roles = roles_of(vocabulary)
    named = named_ids(vocabulary, {})
    # Of tokens that are the same bytes the last one counts, as in llama.cpp.
    model = LongestMatch({unescaped(text): token for token, text in _letters(vocabulary, roles.special)})
    prefix, suffix = framing(vocabulary, named, bos=False, eos=False)
    plain, tokens = roles.plain, vocabulary.tokens  # what a tokenizer keeps must not hold on to the vocabulary
    return Tokenizer(
        SentencePieceEngine(roles.parsing, _as_it_is, model),
        lambda: SentencePieceEngine(plain, _as_it_is, model),
        decoding=ByteDecoding(
            lambda token: tokens[token] if 0 <= token < len(tokens) else None, unescaped, plain=roles.special
        ),
        special=special_tokens_of(vocabulary, roles, {}, prefix=prefix, suffix=suffix),
        chat_templates={
            name: WORLD_TEMPLATE if source.strip() == WORLD else source
            for name, source in chat_templates(vocabulary).items()
        },
        vocab_size=len(tokens),
        missing_bytes=model.missing,
        label=label,
    )


def _letters(vocabulary: Vocabulary, special: frozenset[int]) -> list[tuple[int, str]]:
    """The tokens that letters may become."""
    return [(token, text) for token, text in enumerate(vocabulary.tokens) if token not in special]


def _as_it_is(text: str, first: bool) -> str:
    return text
