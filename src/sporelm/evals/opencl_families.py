"""The families that run on OpenCL devices without a gap: each call of their plans has a kernel.

A test runs a tiny model of each on an OpenCL device, compares its logits with the family's reference and its greedy
tokens with those of the CPU back-end, and checks that all other families have gaps.
"""

# Names of schema modules in `checkpoints.gguf` and `checkpoints.hf`.
OPENCL_FAMILIES = frozenset(
    (
        *("afmoe", "apertus", "arcee", "arctic", "baichuan", "bailingmoe", "bailingmoe2", "biogpt", "bitnet", "bloom"),
        *("chatglm", "codegen", "codeshell", "cogvlm", "cohere", "cohere2", "cohere2moe", "cohere_compass", "cwm"),
        *("dbrx", "deci", "deepseek", "dots1", "ernie4_5", "ernie4_5_moe", "exaone", "exaone4", "exaone_moe"),
        *("falcon", "flex_olmo", "flint", "gemma", "gemma2", "gemma3", "gemma4", "glm4", "glm4moe", "gpt2", "gpt_neo"),
        *("gpt_neox_japanese", "gpt_oss", "gptj", "gptneox", "granite", "granite_swa", "granitemoe", "helium"),
        *("hunyuan_dense", "hunyuan_moe", "hy_v3", "hyperclovax", "internlm2", "jais", "jais2", "kolibri1"),
        *("laguna", "llama", "llama4", "maincoder", "mellum", "mimo2", "minicpm", "minimax_m2", "mistral3"),
        *("modern_bert_decoder", "mpt", "nanbeige", "nanochat", "nemotron", "olmo", "olmo2", "olmoe", "openai_gpt"),
        *("openelm", "opt", "orion", "pangu", "persimmon", "phi2", "phi3", "phimoe", "plamo", "plamo3", "qwen"),
        *("qwen2", "qwen2moe", "qwen2vl", "qwen3", "qwen3moe", "qwen3vl", "qwen3vlmoe", "refact", "seed_oss"),
        *("smallthinker", "smollm3", "stablelm", "starcoder", "starcoder2", "step35", "vaultgemma", "xglm"),
        *("xverse",),
    )
)
