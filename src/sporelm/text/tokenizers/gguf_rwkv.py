"""RWKV's vocabularies ("rwkv") from the metadata of GGUF files, by llama.cpp's rules (llama-vocab.cpp).

One rule is ours: plain text never becomes a control token, so that it cannot forge one.
"""

from collections.abc import Mapping
from typing import Any

from sporelm.text.tokenizers.gguf_special_tokens import (
    build_special_tokens,
    classify_special_tokens,
    find_prefix_and_suffix,
    read_chat_templates,
    read_named_ids,
)
from sporelm.text.tokenizers.gguf_vocabulary import GgufVocabulary
from sporelm.text.tokenizers.rwkv_tokenizer import RwkvModel, unescape_token
from sporelm.text.tokenizers.token_decoder import ByteTokenDecoder
from sporelm.text.tokenizers.tokenizer import Tokenizer
from sporelm.text.tokenizers.tokenizer_pipeline import TokenizerPipeline

# Files of llama.cpp's older converters have this name as their chat template; the template is what llama.cpp renders.
WORLD = "rwkv-world"
WORLD_TEMPLATE = """{%- set names = {'system': 'System', 'user': 'User', 'assistant': 'Assistant'} -%}
{%- for message in messages if message['role'] in names -%}
{{- names[message['role']] + ': ' + (message['content'] or '')|trim + '\\n\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- 'Assistant:' -}}{%- endif -%}"""


def load_gguf_rwkv(metadata: Mapping[str, Any], label: str) -> Tokenizer:
    """Return the tokenizer of an "rwkv" vocabulary. Raises ModelFileError for a damaged one."""
    vocabulary = GgufVocabulary(metadata, label)
    vocabulary.check_token_lengths()
    roles = classify_special_tokens(vocabulary)
    named_ids = read_named_ids(vocabulary, {})
    tokens = vocabulary.tokens  # the tokenizer must not hold a reference to the vocabulary
    # Of tokens with the same bytes the last one counts, as in llama.cpp.
    model = RwkvModel({unescape_token(text): token for token, text in enumerate(tokens) if token not in roles.special})
    prefix, suffix = find_prefix_and_suffix(vocabulary, named_ids, adds_bos=False, adds_eos=False)
    return Tokenizer(
        TokenizerPipeline(roles.splitter, model),
        TokenizerPipeline(roles.plain_splitter, model),
        decoder=ByteTokenDecoder(
            lambda token: tokens[token] if 0 <= token < len(tokens) else None,
            unescape_token,
            verbatim_ids=roles.special,
        ),
        special=build_special_tokens(vocabulary, roles, {}, prefix=prefix, suffix=suffix),
        chat_templates={
            name: WORLD_TEMPLATE if source.strip() == WORLD else source
            for name, source in read_chat_templates(vocabulary).items()
        },
        vocab_size=len(tokens),
        missing_bytes=model.missing_bytes,
        label=label,
    )
