"""Random configurations of every class that transformers has and this package reads, compared in what they compute.

`fields` draws values, `forms` rewrites config.json as other versions and authors write it, `comparison` builds the
model with transformers, saves it, and runs the folder on both sides.
"""
