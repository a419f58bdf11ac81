"""The families that there are: their files in this folder, what files call them, and the tests that vouch for each.

A line a family, so that one file is imported and not all; a test holds each line against the family's file.
"""

from typing import NamedTuple


class Listed(NamedTuple):
    """One family.

    module    its file in this folder
    title     the models that people know it by
    names     general.architecture of its GGUF files, then its classes in transformers
    vouched   with what its logits are compared: "transformers", "llama.cpp", or "numpy" (a plain forward pass in the
              tests, written from the paper, for what transformers lacks)
    """

    module: str
    title: str
    names: tuple[str, ...]
    vouched: tuple[str, ...]


FAMILIES = (
    Listed("afmoe", "Trinity", ("afmoe", "AfmoeForCausalLM"), ("transformers", "llama.cpp")),
    Listed(
        "albert",
        "ALBERT (encoders)",
        ("albert", "AlbertModel", "AlbertForMaskedLM", "AlbertForPreTraining", "AlbertForSequenceClassification"),
        ("transformers",),
    ),
    Listed("apertus", "Apertus", ("apertus", "ApertusForCausalLM"), ("transformers", "llama.cpp")),
    Listed("arcee", "Arcee AFM", ("arcee", "ArceeForCausalLM"), ("transformers", "llama.cpp")),
    Listed("axk1", "A.X K1", ("axk1", "AXK1ForCausalLM"), ("transformers",)),
    Listed(
        "baichuan",
        "Baichuan, Baichuan 2",
        ("baichuan", "BaichuanForCausalLM", "BaiChuanForCausalLM"),
        ("numpy", "llama.cpp"),
    ),
    Listed("bailingmoe", "Ling 1 (lite, plus)", ("bailingmoe", "BailingMoeForCausalLM"), ("numpy", "llama.cpp")),
    Listed("bailingmoe2", "Ling 2, Ring 2", ("bailingmoe2", "BailingMoeV2ForCausalLM"), ("numpy", "llama.cpp")),
    Listed(
        "bailingmoe3",
        "Ling 3",
        ("bailingmoe3", "BailingHybridForCausalLM", "BailingMoeV3ForCausalLM"),
        ("transformers", "llama.cpp"),
    ),
    Listed(
        "bert",
        "BERT, DistilBERT, ERNIE 1 to 3, RoBERTa, XLM-RoBERTa, CamemBERT: bge, e5, MiniLM and rerankers of them (encoders)",
        (
            *("bert", "BertModel", "BertForMaskedLM", "BertForPreTraining", "BertForSequenceClassification"),
            *("ErnieModel", "ErnieForMaskedLM", "ErnieForPreTraining", "ErnieForSequenceClassification"),
            *("RobertaModel", "RobertaForMaskedLM", "RobertaForSequenceClassification"),
            *("XLMRobertaModel", "XLMRobertaForMaskedLM", "XLMRobertaForSequenceClassification"),
            *("CamembertModel", "CamembertForMaskedLM", "CamembertForSequenceClassification"),
            *("DistilBertModel", "DistilBertForMaskedLM", "DistilBertForSequenceClassification"),
        ),
        ("transformers", "llama.cpp"),
    ),
    Listed("bitnet", "BitNet b1.58", ("bitnet", "BitNetForCausalLM"), ("transformers", "llama.cpp")),
    Listed("bloom", "BLOOM", ("bloom", "BloomForCausalLM"), ("transformers", "llama.cpp")),
    Listed(
        "chatglm",
        "ChatGLM2, ChatGLM3, GLM-4 9B",
        ("chatglm", "GlmForCausalLM", "ChatGLMModel", "ChatGLMForConditionalGeneration"),
        ("transformers", "llama.cpp"),
    ),
    Listed("codegen", "CodeGen 1", ("codegen", "CodeGenForCausalLM"), ("transformers",)),
    Listed("codeshell", "CodeShell", ("codeshell", "CodeShellForCausalLM"), ("numpy", "llama.cpp")),
    Listed(
        "cohere",
        "Command-R, Command-R+, Aya",
        ("command-r", "CohereForCausalLM"),
        ("transformers", "llama.cpp"),
    ),
    Listed("cohere2", "Command-R7B, Command-A", ("cohere2", "Cohere2ForCausalLM"), ("transformers", "llama.cpp")),
    Listed(
        "cohere2moe",
        "Command-A+, North-Mini-Code",
        ("cohere2moe", "Cohere2MoeForCausalLM"),
        ("transformers", "llama.cpp"),
    ),
    Listed(
        "cohere_compass",
        "North-Micro (Cohere Compass, text)",
        ("cohere_compass_text", "CohereCompassForCausalLM", "CohereCompassForConditionalGeneration"),
        ("transformers",),
    ),
    Listed("cwm", "Code World Model", ("cwm", "CwmForCausalLM"), ("transformers",)),
    Listed("dbrx", "DBRX", ("dbrx", "DbrxForCausalLM"), ("transformers", "llama.cpp")),
    Listed(
        "deberta2",
        "DeBERTa v2 and v3: mxbai-rerank, NLI (encoders)",
        ("deberta-v2", "DebertaV2Model", "DebertaV2ForMaskedLM", "DebertaV2ForSequenceClassification"),
        ("transformers",),
    ),
    Listed(
        "deci",
        "DeciLM, Llama-Nemotron Super 49B, 51B, Ultra 253B",
        ("deci", "DeciLMForCausalLM"),
        ("numpy", "llama.cpp"),
    ),
    Listed("deepseek", "DeepSeek MoE (V1)", ("deepseek", "DeepseekForCausalLM"), ("numpy", "llama.cpp")),
    Listed(
        "deepseek2",
        "DeepSeek V2, V3, R1, Kimi K2, GLM-4.7-Flash, Youtu-LLM",
        ("deepseek2", "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "Glm4MoeLiteForCausalLM", "YoutuForCausalLM"),
        ("transformers", "llama.cpp"),
    ),
    Listed("deepseek32", "DeepSeek V3.2", ("deepseek32", "DeepseekV32ForCausalLM"), ("transformers", "llama.cpp")),
    Listed("dots1", "dots.llm1", ("dots1", "Dots1ForCausalLM"), ("transformers", "llama.cpp")),
    Listed(
        "electra",
        "ELECTRA, and rerankers of it (encoders)",
        ("electra", "ElectraModel", "ElectraForMaskedLM", "ElectraForPreTraining", "ElectraForSequenceClassification"),
        ("transformers",),
    ),
    Listed(
        "ernie4_5",
        "ERNIE 4.5 (dense)",
        ("ernie4_5", "Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"),
        ("transformers", "llama.cpp"),
    ),
    Listed(
        "ernie4_5_moe",
        "ERNIE 4.5 (mixtures)",
        ("ernie4_5-moe", "Ernie4_5_MoeForCausalLM"),
        ("transformers", "llama.cpp"),
    ),
    Listed(
        "eurobert",
        "EuroBERT (encoders)",
        ("eurobert", "EuroBertModel", "EuroBertForMaskedLM", "EuroBertForSequenceClassification"),
        ("transformers", "llama.cpp"),
    ),
    Listed("exaone", "EXAONE 3, EXAONE 3.5", ("exaone", "ExaoneForCausalLM"), ("numpy", "llama.cpp")),
    Listed("exaone4", "EXAONE 4", ("exaone4", "Exaone4ForCausalLM"), ("transformers", "llama.cpp")),
    Listed(
        "exaone_moe",
        "K-EXAONE",
        ("exaone-moe", "ExaoneMoeForCausalLM", "ExaoneMoEForCausalLM"),
        ("transformers", "llama.cpp"),
    ),
    Listed(
        "falcon",
        "Falcon 7B, 40B, 180B, Falcon 2, Falcon-RW",
        ("falcon", "FalconForCausalLM"),
        ("transformers", "llama.cpp"),
    ),
    Listed("falcon_h1", "Falcon-H1", ("falcon-h1", "FalconH1ForCausalLM"), ("transformers", "llama.cpp")),
    Listed("flex_olmo", "FlexOlmo", ("flex_olmo", "FlexOlmoForCausalLM"), ("transformers",)),
    Listed("gemma", "Gemma 1", ("gemma", "GemmaForCausalLM"), ("transformers", "llama.cpp")),
    Listed("gemma2", "Gemma 2", ("gemma2", "Gemma2ForCausalLM"), ("transformers", "llama.cpp")),
    Listed(
        "gemma3",
        "Gemma 3 (text)",
        ("gemma3", "Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
        ("transformers", "llama.cpp"),
    ),
    Listed(
        "gemma3n",
        "Gemma 3n (text)",
        ("gemma3n", "Gemma3nForCausalLM", "Gemma3nForConditionalGeneration"),
        ("transformers", "llama.cpp"),
    ),
    Listed(
        "gemma4",
        "Gemma 4 (text)",
        (
            *("gemma4", "Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"),
            *("Gemma4UnifiedForCausalLM", "Gemma4UnifiedForConditionalGeneration"),
        ),
        ("transformers", "llama.cpp"),
    ),
    Listed(
        "gemma_embedding",
        "EmbeddingGemma (encoder)",
        ("gemma-embedding", "Gemma3TextModel"),
        ("transformers", "llama.cpp"),
    ),
    Listed("glm4", "GLM-4-0414", ("glm4", "Glm4ForCausalLM"), ("transformers", "llama.cpp")),
    Listed(
        "glm4moe",
        "GLM-4.5, GLM-4.6, Solar Open",
        ("glm4moe", "Glm4MoeForCausalLM", "SolarOpenForCausalLM"),
        ("transformers", "llama.cpp"),
    ),
    Listed("glm_dsa", "GLM-5, 5.1, 5.2", ("glm-dsa", "GlmMoeDsaForCausalLM"), ("transformers", "llama.cpp")),
    Listed("gpt2", "GPT-2", ("gpt2", "GPT2LMHeadModel"), ("transformers", "llama.cpp")),
    Listed("gpt_neo", "GPT-Neo, TinyStories", ("gpt_neo", "GPTNeoForCausalLM"), ("transformers",)),
    Listed(
        "gpt_neox_japanese",
        "GPT-NeoX-Japanese",
        ("gpt_neox_japanese", "GPTNeoXJapaneseForCausalLM"),
        ("transformers",),
    ),
    Listed("gpt_oss", "gpt-oss", ("gpt-oss", "GptOssForCausalLM"), ("transformers", "llama.cpp")),
    Listed("gptj", "GPT-J", ("gptj", "GPTJForCausalLM"), ("transformers",)),
    Listed(
        "gptneox",
        "GPT-NeoX, Pythia, Dolly 2, RedPajama-INCITE",
        ("gptneox", "GPTNeoXForCausalLM"),
        ("transformers", "llama.cpp"),
    ),
    Listed("granite", "Granite 3 (dense)", ("granite", "GraniteForCausalLM"), ("transformers", "llama.cpp")),
    Listed(
        "granite_hybrid",
        "Granite 4 (hybrids), Bamba",
        ("granitehybrid", "GraniteMoeHybridForCausalLM", "BambaForCausalLM"),
        ("transformers", "llama.cpp"),
    ),
    Listed(
        "granite_swa",
        "Granite with windows (Swash)",
        ("granite_swa", "GraniteSWAForCausalLM", "GraniteMoeSWAForCausalLM"),
        ("transformers", "llama.cpp"),
    ),
    Listed(
        "granitemoe",
        "Granite 3 MoE",
        ("granitemoe", "GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"),
        ("transformers", "llama.cpp"),
    ),
    Listed(
        "gte",
        "GTE v1.5, GTE multilingual (encoders)",
        (
            *("gte", "GteModel", "NewModel", "GteForMaskedLM", "NewForMaskedLM", "NewForTokenClassification"),
            *("GteForSequenceClassification", "NewForSequenceClassification"),
        ),
        ("transformers",),
    ),
    Listed("helium", "Helium 1", ("helium", "HeliumForCausalLM"), ("transformers",)),
    Listed(
        "hunyuan_dense",
        "Hunyuan (dense)",
        ("hunyuan-dense", "HunYuanDenseV1ForCausalLM"),
        ("transformers", "llama.cpp"),
    ),
    Listed("hunyuan_moe", "Hunyuan-A13B", ("hunyuan-moe", "HunYuanMoEV1ForCausalLM"), ("transformers", "llama.cpp")),
    Listed("hy_v3", "Hy3", ("hy_v3", "HYV3ForCausalLM"), ("transformers", "llama.cpp")),
    Listed("hyperclovax", "HyperCLOVA X SEED (Think)", ("hyperclovax", "HyperCLOVAXForCausalLM"), ("transformers",)),
    Listed("internlm2", "InternLM2, InternLM2.5", ("internlm2", "InternLM2ForCausalLM"), ("numpy", "llama.cpp")),
    Listed("jais", "Jais 1", ("jais", "JAISLMHeadModel"), ("numpy", "llama.cpp")),
    Listed("jais2", "Jais 2", ("jais2", "Jais2ForCausalLM"), ("transformers", "llama.cpp")),
    Listed("jamba", "Jamba", ("jamba", "JambaForCausalLM"), ("transformers", "llama.cpp")),
    Listed(
        "jina_bert_v2",
        "Jina Embeddings v2 (encoders)",
        ("jina-bert-v2", "JinaBertModel", "JinaBertForMaskedLM"),
        ("numpy", "llama.cpp"),
    ),
    Listed(
        "jina_bert_v3",
        "Jina Embeddings v3, without the adapters of its tasks (encoders)",
        (
            *("jina-bert-v3", "JinaEmbeddingsV3Model", "JinaEmbeddingsV3ForMaskedLM"),
            "JinaEmbeddingsV3ForSequenceClassification",
        ),
        ("transformers", "llama.cpp"),
    ),
    Listed("kimi_linear", "Kimi Linear", ("kimi-linear", "KimiLinearForCausalLM"), ("transformers", "llama.cpp")),
    Listed("kolibri1", "Kolibri 1", ("kolibri1", "Kolibri1ForCausalLM"), ("transformers",)),
    Listed("laguna", "Laguna", ("laguna", "LagunaForCausalLM"), ("transformers", "llama.cpp")),
    Listed("lfm2", "LFM2, LFM2.5", ("lfm2", "Lfm2ForCausalLM"), ("transformers", "llama.cpp")),
    Listed("lfm2moe", "LFM2 with experts", ("lfm2moe", "Lfm2MoeForCausalLM"), ("transformers", "llama.cpp")),
    Listed("lfm3", "LFM3", ("lfm3", "Lfm3ForCausalLM"), ("transformers",)),
    Listed(
        "llama",
        "Llama 1 to 3, Mistral, Ministral, Mixtral, InternLM 1 and 3, SmolLM2, TinyStories, Minueza",
        (
            *("llama", "LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM"),
            *("MinistralForCausalLM", "InternLMForCausalLM", "InternLM3ForCausalLM"),
        ),
        ("transformers", "numpy", "llama.cpp"),
    ),
    Listed(
        "llama4",
        "Llama 4 (text)",
        ("llama4", "Llama4ForCausalLM", "Llama4ForConditionalGeneration"),
        ("transformers", "llama.cpp"),
    ),
    Listed("maincoder", "Maincoder", ("maincoder", "MaincoderForCausalLM"), ("numpy", "llama.cpp")),
    Listed(
        "mamba",
        "Mamba 1, Falcon-Mamba",
        ("mamba", "MambaForCausalLM", "FalconMambaForCausalLM"),
        ("transformers", "llama.cpp"),
    ),
    Listed("mamba2", "Mamba 2, Codestral Mamba", ("mamba2", "Mamba2ForCausalLM"), ("transformers", "llama.cpp")),
    Listed("mellum", "Mellum 2", ("mellum", "MellumForCausalLM"), ("transformers", "llama.cpp")),
    Listed("mimo2", "MiMo-V2-Flash", ("mimo2", "MiMoV2FlashForCausalLM"), ("transformers", "llama.cpp")),
    Listed("minicpm", "MiniCPM 1 and 2", ("minicpm", "MiniCPMForCausalLM"), ("numpy", "llama.cpp")),
    Listed("minicpm3", "MiniCPM3", ("minicpm3", "MiniCPM3ForCausalLM"), ("transformers", "llama.cpp")),
    Listed(
        "minimax_01",
        "MiniMax-Text-01, MiniMax-M1",
        ("minimax-01", "MiniMaxForCausalLM", "MiniMaxM1ForCausalLM", "MiniMaxText01ForCausalLM"),
        ("transformers", "llama.cpp"),
    ),
    Listed("minimax_m2", "MiniMax-M2", ("minimax-m2", "MiniMaxM2ForCausalLM"), ("transformers", "llama.cpp")),
    Listed(
        "mistral3",
        "Ministral 3, Mistral Small 3.1 (text)",
        ("mistral3", "Ministral3ForCausalLM", "Mistral3ForConditionalGeneration"),
        ("transformers", "llama.cpp"),
    ),
    Listed(
        "mistral4",
        "Mistral Small 4 (text)",
        ("mistral4", "Mistral4ForCausalLM"),
        ("transformers", "llama.cpp"),
    ),
    Listed(
        "modern_bert",
        "ModernBERT, gte-modernbert (encoders)",
        ("modern-bert", "ModernBertModel", "ModernBertForSequenceClassification", "ModernBertForMaskedLM"),
        ("transformers", "llama.cpp"),
    ),
    Listed(
        "modern_bert_decoder",
        "Ettin, decoders of ModernBERT",
        ("modern-bert-decoder", "ModernBertDecoderForCausalLM"),
        ("transformers",),
    ),
    Listed(
        "mpnet",
        "MPNet: all-mpnet-base-v2 and its kin (encoders)",
        ("mpnet", "MPNetModel", "MPNetForMaskedLM", "MPNetForSequenceClassification"),
        ("transformers",),
    ),
    Listed("mpt", "MPT", ("mpt", "MptForCausalLM", "MPTForCausalLM"), ("transformers", "llama.cpp")),
    Listed("nanbeige", "Nanbeige 4.2", ("nanbeige", "NanbeigeForCausalLM"), ("numpy", "llama.cpp")),
    Listed("nanochat", "nanochat", ("nanochat", "NanoChatForCausalLM"), ("transformers",)),
    Listed("nemotron", "Nemotron 4, Minitron", ("nemotron", "NemotronForCausalLM"), ("transformers", "llama.cpp")),
    Listed(
        "nemotron_h",
        "Nemotron-H, Nemotron Nano 2, Nemotron 3",
        ("nemotron_h", "nemotron_h_moe", "NemotronHForCausalLM"),
        ("transformers", "llama.cpp"),
    ),
    Listed(
        "nomic_bert",
        "Nomic Embed (encoders)",
        ("nomic-bert", "nomic-bert-moe", "NomicBertModel", "NomicBertForMaskedLM", "NomicBertForPreTraining"),
        ("transformers", "numpy", "llama.cpp"),
    ),
    Listed("olmo", "OLMo 1", ("olmo", "OlmoForCausalLM"), ("transformers", "llama.cpp")),
    Listed("olmo2", "OLMo 2, OLMo 3", ("olmo2", "Olmo2ForCausalLM", "Olmo3ForCausalLM"), ("transformers", "llama.cpp")),
    Listed("olmo_hybrid", "OLMo Hybrid", ("olmo-hybrid", "OlmoHybridForCausalLM"), ("transformers",)),
    Listed("olmoe", "OLMoE", ("olmoe", "OlmoeForCausalLM"), ("transformers", "llama.cpp")),
    Listed("openelm", "OpenELM", ("openelm", "OpenELMForCausalLM"), ("numpy", "llama.cpp")),
    Listed("opt", "OPT, Galactica", ("opt", "OPTForCausalLM"), ("transformers",)),
    Listed("orion", "Orion", ("orion", "OrionForCausalLM"), ("numpy", "llama.cpp")),
    Listed(
        "pangu",
        "openPangu Embedded",
        ("pangu-embedded", "PanguEmbeddedForCausalLM"),
        ("numpy", "llama.cpp"),
    ),
    Listed("phi2", "Phi-1, Phi-1.5, Phi-2", ("phi2", "PhiForCausalLM"), ("transformers", "llama.cpp")),
    Listed("phi3", "Phi-3, Phi-3.5, Phi-4", ("phi3", "Phi3ForCausalLM"), ("transformers", "llama.cpp")),
    Listed("phimoe", "Phi-3.5-MoE", ("phimoe", "PhimoeForCausalLM", "PhiMoEForCausalLM"), ("transformers",)),
    Listed("plamo2", "PLaMo 2", ("plamo2", "Plamo2ForCausalLM", "PLaMo2ForCausalLM"), ("numpy", "llama.cpp")),
    Listed("plamo3", "PLaMo 3", ("plamo3", "Plamo3ForCausalLM", "PLaMo3ForCausalLM"), ("numpy", "llama.cpp")),
    Listed("qwen", "Qwen 1", ("qwen", "QWenLMHeadModel"), ("numpy", "llama.cpp")),
    Listed("qwen2", "Qwen2, Qwen2.5", ("qwen2", "Qwen2ForCausalLM"), ("transformers", "llama.cpp")),
    Listed(
        "qwen2moe", "Qwen1.5-MoE, Qwen2-57B-A14B", ("qwen2moe", "Qwen2MoeForCausalLM"), ("transformers", "llama.cpp")
    ),
    Listed(
        "qwen2vl",
        "Qwen2-VL, Qwen2.5-VL (text)",
        ("qwen2vl", "Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"),
        ("transformers", "llama.cpp"),
    ),
    Listed("qwen3", "Qwen3", ("qwen3", "Qwen3ForCausalLM"), ("transformers", "llama.cpp")),
    Listed(
        "qwen35",
        "Qwen3.5 (text)",
        ("qwen35", "Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"),
        ("transformers", "llama.cpp"),
    ),
    Listed(
        "qwen35moe",
        "Qwen3.5 with experts (text)",
        ("qwen35moe", "Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"),
        ("transformers", "llama.cpp"),
    ),
    Listed(
        "qwen3moe", "Qwen3-30B-A3B, Qwen3-235B-A22B", ("qwen3moe", "Qwen3MoeForCausalLM"), ("transformers", "llama.cpp")
    ),
    Listed("qwen3next", "Qwen3-Next", ("qwen3next", "Qwen3NextForCausalLM"), ("transformers", "llama.cpp")),
    Listed(
        "qwen3vl",
        "Qwen3-VL (text)",
        ("qwen3vl", "Qwen3VLForConditionalGeneration"),
        ("transformers", "llama.cpp"),
    ),
    Listed(
        "qwen3vlmoe",
        "Qwen3-VL with experts (text)",
        ("qwen3vlmoe", "Qwen3VLMoeForConditionalGeneration"),
        ("transformers", "llama.cpp"),
    ),
    Listed("rwkv7", "RWKV-7 Goose", ("rwkv7", "RWKV7ForCausalLM"), ("numpy", "llama.cpp")),
    Listed("seed_oss", "Seed-OSS", ("seed_oss", "SeedOssForCausalLM"), ("transformers", "llama.cpp")),
    Listed("smallthinker", "SmallThinker", ("smallthinker", "SmallThinkerForCausalLM"), ("numpy", "llama.cpp")),
    Listed("smollm3", "SmolLM3", ("smollm3", "SmolLM3ForCausalLM"), ("transformers", "llama.cpp")),
    Listed(
        "stablelm",
        "StableLM 3B, Zephyr, StableLM 2",
        ("stablelm", "StableLmForCausalLM"),
        ("transformers", "llama.cpp"),
    ),
    Listed("starcoder", "StarCoder 1", ("starcoder", "GPTBigCodeForCausalLM"), ("transformers", "llama.cpp")),
    Listed("starcoder2", "StarCoder2", ("starcoder2", "Starcoder2ForCausalLM"), ("transformers", "llama.cpp")),
    Listed("step35", "Step 3.5 Flash, Step 3.7 Flash", ("step35", "Step3p5ForCausalLM"), ("transformers", "llama.cpp")),
    Listed("vaultgemma", "VaultGemma", ("vaultgemma", "VaultGemmaForCausalLM"), ("transformers",)),
    Listed("xverse", "XVERSE", ("xverse", "XverseForCausalLM"), ("numpy", "llama.cpp")),
)
