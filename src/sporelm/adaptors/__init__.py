"""Our ops lent to other frameworks: torch, transformers, and programs that call dlinfer.

`sporelm.adaptors.torch` registers ops with torch, `sporelm.adaptors.transformers` puts them into a Hugging Face model,
`sporelm.adaptors.dlinfer` offers them under dlinfer's names.
"""
