"""The supported models: one entry for each pair of schemas, and the references that verify it.

The table makes it possible to import a single module of schemas. A test compares each entry with its schemas.
"""

from typing import NamedTuple


class SupportedModel(NamedTuple):
    """One family of models.

    module            of its schemas in `checkpoints.gguf` and `checkpoints.hf`
    title             common names of the models
    names             `general.architecture` of its GGUF files, then its classes in transformers
    verified_against  references for its logits: "transformers", "llama.cpp", or "numpy" (a plain forward pass in the
                      tests, written from the paper, for models that transformers lacks)
    """

    module: str
    title: str
    names: tuple[str, ...]
    verified_against: tuple[str, ...]


MODELS = (
    SupportedModel("afmoe", "Trinity", ("afmoe", "AfmoeForCausalLM"), ("transformers", "llama.cpp")),
    SupportedModel(
        "albert",
        "ALBERT (encoders)",
        ("albert", "AlbertModel", "AlbertForMaskedLM", "AlbertForPreTraining", "AlbertForSequenceClassification"),
        ("transformers",),
    ),
    SupportedModel("apertus", "Apertus", ("apertus", "ApertusForCausalLM"), ("transformers", "llama.cpp")),
    SupportedModel("arcee", "Arcee AFM", ("arcee", "ArceeForCausalLM"), ("transformers", "llama.cpp")),
    SupportedModel("arctic", "Snowflake Arctic", ("arctic", "ArcticForCausalLM"), ("numpy", "llama.cpp")),
    SupportedModel("axk1", "A.X K1", ("axk1", "AXK1ForCausalLM"), ("transformers",)),
    SupportedModel("axk2", "A.X K2 Light", ("axk2", "AXK2ForCausalLM"), ("transformers",)),
    SupportedModel(
        "baichuan",
        "Baichuan, Baichuan 2",
        ("baichuan", "BaichuanForCausalLM", "BaiChuanForCausalLM"),
        ("numpy", "llama.cpp"),
    ),
    SupportedModel(
        "bailingmoe", "Ling 1 (lite, plus)", ("bailingmoe", "BailingMoeForCausalLM"), ("numpy", "llama.cpp")
    ),
    SupportedModel("bailingmoe2", "Ling 2, Ring 2", ("bailingmoe2", "BailingMoeV2ForCausalLM"), ("numpy", "llama.cpp")),
    SupportedModel(
        "bailingmoe3",
        "Ling 3",
        ("bailingmoe3", "BailingHybridForCausalLM", "BailingMoeV3ForCausalLM"),
        ("transformers", "llama.cpp"),
    ),
    SupportedModel(
        "bert",
        "BERT, DistilBERT, ERNIE 3, RoBERTa, XLM-RoBERTa, CamemBERT: bge, e5, MiniLM and rerankers of them (encoders)",
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
    SupportedModel("biogpt", "BioGPT", ("biogpt", "BioGptForCausalLM"), ("transformers",)),
    SupportedModel("bitnet", "BitNet b1.58", ("bitnet", "BitNetForCausalLM"), ("transformers", "llama.cpp")),
    SupportedModel("bloom", "BLOOM", ("bloom", "BloomForCausalLM"), ("transformers", "llama.cpp")),
    SupportedModel(
        "chatglm",
        "ChatGLM2, ChatGLM3, GLM-4 9B",
        ("chatglm", "GlmForCausalLM", "ChatGLMModel", "ChatGLMForConditionalGeneration"),
        ("transformers", "llama.cpp"),
    ),
    SupportedModel("codegen", "CodeGen 1", ("codegen", "CodeGenForCausalLM"), ("transformers",)),
    SupportedModel("codeshell", "CodeShell", ("codeshell", "CodeShellForCausalLM"), ("numpy", "llama.cpp")),
    SupportedModel("cogvlm", "CogVLM, CogVLM2", ("cogvlm", "CogVLMForCausalLM"), ("numpy", "llama.cpp")),
    SupportedModel(
        "cohere",
        "Command-R, Command-R+, Aya",
        ("command-r", "CohereForCausalLM"),
        ("transformers", "llama.cpp"),
    ),
    SupportedModel(
        "cohere2", "Command-R7B, Command-A", ("cohere2", "Cohere2ForCausalLM"), ("transformers", "llama.cpp")
    ),
    SupportedModel(
        "cohere2moe",
        "Command-A+, North-Mini-Code",
        ("cohere2moe", "Cohere2MoeForCausalLM"),
        ("transformers", "llama.cpp"),
    ),
    SupportedModel(
        "cohere_compass",
        "North-Micro (Cohere Compass, text)",
        ("cohere_compass_text", "CohereCompassForCausalLM", "CohereCompassForConditionalGeneration"),
        ("transformers",),
    ),
    SupportedModel("cwm", "Code World Model", ("cwm", "CwmForCausalLM"), ("transformers",)),
    SupportedModel("dbrx", "DBRX", ("dbrx", "DbrxForCausalLM"), ("transformers", "llama.cpp")),
    SupportedModel(
        "deberta2",
        "DeBERTa v2 and v3: mxbai-rerank, NLI (encoders)",
        ("deberta-v2", "DebertaV2Model", "DebertaV2ForMaskedLM", "DebertaV2ForSequenceClassification"),
        ("transformers",),
    ),
    SupportedModel(
        "deci",
        "DeciLM, Llama-Nemotron Super 49B, 51B, Ultra 253B",
        ("deci", "DeciLMForCausalLM"),
        ("numpy", "llama.cpp"),
    ),
    SupportedModel("deepseek", "DeepSeek MoE (V1)", ("deepseek", "DeepseekForCausalLM"), ("numpy", "llama.cpp")),
    SupportedModel(
        "deepseek2",
        "DeepSeek V2, V3, R1, Kimi K2, GLM-4.7-Flash, Youtu-LLM",
        ("deepseek2", "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "Glm4MoeLiteForCausalLM", "YoutuForCausalLM"),
        ("transformers", "llama.cpp"),
    ),
    SupportedModel(
        "deepseek32", "DeepSeek V3.2", ("deepseek32", "DeepseekV32ForCausalLM"), ("transformers", "llama.cpp")
    ),
    SupportedModel("dots1", "dots.llm1", ("dots1", "Dots1ForCausalLM"), ("transformers", "llama.cpp")),
    SupportedModel(
        "electra",
        "ELECTRA, and rerankers of it (encoders)",
        ("electra", "ElectraModel", "ElectraForMaskedLM", "ElectraForPreTraining", "ElectraForSequenceClassification"),
        ("transformers",),
    ),
    SupportedModel(
        "ernie4_5",
        "ERNIE 4.5 (dense)",
        ("ernie4_5", "Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"),
        ("transformers", "llama.cpp"),
    ),
    SupportedModel(
        "ernie4_5_moe",
        "ERNIE 4.5 (mixtures)",
        ("ernie4_5-moe", "Ernie4_5_MoeForCausalLM"),
        ("transformers", "llama.cpp"),
    ),
    SupportedModel(
        "eurobert",
        "EuroBERT (encoders)",
        ("eurobert", "EuroBertModel", "EuroBertForMaskedLM", "EuroBertForSequenceClassification"),
        ("transformers", "llama.cpp"),
    ),
    SupportedModel("exaone", "EXAONE 3, EXAONE 3.5", ("exaone", "ExaoneForCausalLM"), ("numpy", "llama.cpp")),
    SupportedModel("exaone4", "EXAONE 4", ("exaone4", "Exaone4ForCausalLM"), ("transformers", "llama.cpp")),
    SupportedModel(
        "exaone_moe",
        "K-EXAONE",
        ("exaone-moe", "ExaoneMoeForCausalLM", "ExaoneMoEForCausalLM"),
        ("transformers", "llama.cpp"),
    ),
    SupportedModel(
        "falcon",
        "Falcon 7B, 40B, 180B, Falcon 2, Falcon-RW",
        ("falcon", "FalconForCausalLM"),
        ("transformers", "llama.cpp"),
    ),
    SupportedModel("falcon_h1", "Falcon-H1", ("falcon-h1", "FalconH1ForCausalLM"), ("transformers", "llama.cpp")),
    SupportedModel("flex_olmo", "FlexOlmo", ("flex_olmo", "FlexOlmoForCausalLM"), ("transformers",)),
    SupportedModel("flint", "Flint", ("flint", "FlintForCausalLM"), ("transformers",)),
    SupportedModel("gemma", "Gemma 1", ("gemma", "GemmaForCausalLM"), ("transformers", "llama.cpp")),
    SupportedModel("gemma2", "Gemma 2", ("gemma2", "Gemma2ForCausalLM"), ("transformers", "llama.cpp")),
    SupportedModel(
        "gemma3",
        "Gemma 3 (text)",
        ("gemma3", "Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
        ("transformers", "llama.cpp"),
    ),
    SupportedModel(
        "gemma3n",
        "Gemma 3n (text)",
        ("gemma3n", "Gemma3nForCausalLM", "Gemma3nForConditionalGeneration"),
        ("transformers", "llama.cpp"),
    ),
    SupportedModel(
        "gemma4",
        "Gemma 4 (text)",
        (
            *("gemma4", "Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"),
            *("Gemma4UnifiedForCausalLM", "Gemma4UnifiedForConditionalGeneration"),
        ),
        ("transformers", "llama.cpp"),
    ),
    SupportedModel(
        "gemma_embedding",
        "EmbeddingGemma (encoder)",
        ("gemma-embedding", "Gemma3TextModel"),
        ("transformers", "llama.cpp"),
    ),
    SupportedModel("glm4", "GLM-4-0414", ("glm4", "Glm4ForCausalLM"), ("transformers", "llama.cpp")),
    SupportedModel(
        "glm4moe",
        "GLM-4.5, GLM-4.6, Solar Open",
        ("glm4moe", "Glm4MoeForCausalLM", "SolarOpenForCausalLM"),
        ("transformers", "llama.cpp"),
    ),
    SupportedModel("glm_dsa", "GLM-5, 5.1, 5.2", ("glm-dsa", "GlmMoeDsaForCausalLM"), ("transformers", "llama.cpp")),
    SupportedModel("gpt2", "GPT-2", ("gpt2", "GPT2LMHeadModel"), ("transformers", "llama.cpp")),
    SupportedModel("gpt_neo", "GPT-Neo, TinyStories", ("gpt_neo", "GPTNeoForCausalLM"), ("transformers",)),
    SupportedModel(
        "gpt_neox_japanese",
        "GPT-NeoX-Japanese",
        ("gpt_neox_japanese", "GPTNeoXJapaneseForCausalLM"),
        ("transformers",),
    ),
    SupportedModel("gpt_oss", "gpt-oss", ("gpt-oss", "GptOssForCausalLM"), ("transformers", "llama.cpp")),
    SupportedModel("gptj", "GPT-J", ("gptj", "GPTJForCausalLM"), ("transformers",)),
    SupportedModel(
        "gptneox",
        "GPT-NeoX, Pythia, Dolly 2, RedPajama-INCITE",
        ("gptneox", "GPTNeoXForCausalLM"),
        ("transformers", "llama.cpp"),
    ),
    SupportedModel("granite", "Granite 3 (dense)", ("granite", "GraniteForCausalLM"), ("transformers", "llama.cpp")),
    SupportedModel(
        "granite_hybrid",
        "Granite 4 (hybrids), Bamba",
        ("granitehybrid", "GraniteMoeHybridForCausalLM", "BambaForCausalLM"),
        ("transformers", "llama.cpp"),
    ),
    SupportedModel(
        "granite_swa",
        "Granite with windows (Swash)",
        ("granite_swa", "GraniteSWAForCausalLM", "GraniteMoeSWAForCausalLM"),
        ("transformers", "llama.cpp"),
    ),
    SupportedModel(
        "granitemoe",
        "Granite 3 MoE",
        ("granitemoe", "GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"),
        ("transformers", "llama.cpp"),
    ),
    SupportedModel(
        "gte",
        "GTE v1.5, GTE multilingual (encoders)",
        (
            *("gte", "GteModel", "NewModel", "GteForMaskedLM", "NewForMaskedLM", "NewForTokenClassification"),
            *("GteForSequenceClassification", "NewForSequenceClassification"),
        ),
        ("transformers",),
    ),
    SupportedModel("helium", "Helium 1", ("helium", "HeliumForCausalLM"), ("transformers",)),
    SupportedModel(
        "hunyuan_dense",
        "Hunyuan (dense)",
        ("hunyuan-dense", "HunYuanDenseV1ForCausalLM"),
        ("transformers", "llama.cpp"),
    ),
    SupportedModel(
        "hunyuan_moe", "Hunyuan-A13B", ("hunyuan-moe", "HunYuanMoEV1ForCausalLM"), ("transformers", "llama.cpp")
    ),
    SupportedModel("hy_v3", "Hy3", ("hy_v3", "HYV3ForCausalLM"), ("transformers", "llama.cpp")),
    SupportedModel(
        "hyperclovax", "HyperCLOVA X SEED (Think)", ("hyperclovax", "HyperCLOVAXForCausalLM"), ("transformers",)
    ),
    SupportedModel(
        "internlm2", "InternLM2, InternLM2.5", ("internlm2", "InternLM2ForCausalLM"), ("numpy", "llama.cpp")
    ),
    SupportedModel("jais", "Jais 1", ("jais", "JAISLMHeadModel"), ("numpy", "llama.cpp")),
    SupportedModel("jais2", "Jais 2", ("jais2", "Jais2ForCausalLM"), ("transformers", "llama.cpp")),
    SupportedModel("jamba", "Jamba", ("jamba", "JambaForCausalLM"), ("transformers", "llama.cpp")),
    SupportedModel("jetmoe", "JetMoE", ("jetmoe", "JetMoeForCausalLM"), ("transformers",)),
    SupportedModel(
        "jina_bert_v2",
        "Jina Embeddings v2 (encoders)",
        ("jina-bert-v2", "JinaBertModel", "JinaBertForMaskedLM"),
        ("numpy", "llama.cpp"),
    ),
    SupportedModel(
        "jina_bert_v3",
        "Jina Embeddings v3, without the adapters of its tasks (encoders)",
        (
            *("jina-bert-v3", "JinaEmbeddingsV3Model", "JinaEmbeddingsV3ForMaskedLM"),
            "JinaEmbeddingsV3ForSequenceClassification",
        ),
        ("transformers", "llama.cpp"),
    ),
    SupportedModel(
        "kimi_linear", "Kimi Linear", ("kimi-linear", "KimiLinearForCausalLM"), ("transformers", "llama.cpp")
    ),
    SupportedModel("kolibri1", "Kolibri 1", ("kolibri1", "Kolibri1ForCausalLM"), ("transformers",)),
    SupportedModel("laguna", "Laguna", ("laguna", "LagunaForCausalLM"), ("transformers", "llama.cpp")),
    SupportedModel("lfm2", "LFM2, LFM2.5", ("lfm2", "Lfm2ForCausalLM"), ("transformers", "llama.cpp")),
    SupportedModel("lfm2moe", "LFM2 with experts", ("lfm2moe", "Lfm2MoeForCausalLM"), ("transformers", "llama.cpp")),
    SupportedModel("lfm3", "LFM3", ("lfm3", "Lfm3ForCausalLM"), ("transformers",)),
    SupportedModel(
        "llama",
        "Llama 1 to 3, Mistral, Ministral, Mixtral, InternLM 1 and 3, SmolLM2, TinyStories, Minueza",
        (
            *("llama", "LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM"),
            *("MinistralForCausalLM", "InternLMForCausalLM", "InternLM3ForCausalLM"),
        ),
        ("transformers", "numpy", "llama.cpp"),
    ),
    SupportedModel(
        "llama4",
        "Llama 4 (text)",
        ("llama4", "Llama4ForCausalLM", "Llama4ForConditionalGeneration"),
        ("transformers", "llama.cpp"),
    ),
    SupportedModel("longcat_flash", "LongCat-Flash", ("longcat-flash", "LongcatFlashForCausalLM"), ("transformers",)),
    SupportedModel("maincoder", "Maincoder", ("maincoder", "MaincoderForCausalLM"), ("numpy", "llama.cpp")),
    SupportedModel(
        "mamba",
        "Mamba 1, Falcon-Mamba",
        ("mamba", "MambaForCausalLM", "FalconMambaForCausalLM"),
        ("transformers", "llama.cpp"),
    ),
    SupportedModel(
        "mamba2", "Mamba 2, Codestral Mamba", ("mamba2", "Mamba2ForCausalLM"), ("transformers", "llama.cpp")
    ),
    SupportedModel(
        "megatron_bert",
        "Megatron-BERT, XLM-RoBERTa-XL (encoders)",
        (
            *("megatron-bert", "MegatronBertModel", "MegatronBertForMaskedLM", "MegatronBertForSequenceClassification"),
            *("XLMRobertaXLModel", "XLMRobertaXLForMaskedLM", "XLMRobertaXLForSequenceClassification"),
        ),
        ("transformers",),
    ),
    SupportedModel("mellum", "Mellum 2", ("mellum", "MellumForCausalLM"), ("transformers", "llama.cpp")),
    SupportedModel("mimo2", "MiMo-V2-Flash", ("mimo2", "MiMoV2FlashForCausalLM"), ("transformers", "llama.cpp")),
    SupportedModel("minicpm", "MiniCPM 1 and 2", ("minicpm", "MiniCPMForCausalLM"), ("numpy", "llama.cpp")),
    SupportedModel("minicpm3", "MiniCPM3", ("minicpm3", "MiniCPM3ForCausalLM"), ("transformers", "llama.cpp")),
    SupportedModel(
        "minimax_01",
        "MiniMax-Text-01, MiniMax-M1",
        ("minimax-01", "MiniMaxForCausalLM", "MiniMaxM1ForCausalLM", "MiniMaxText01ForCausalLM"),
        ("transformers", "llama.cpp"),
    ),
    SupportedModel("minimax_m2", "MiniMax-M2", ("minimax-m2", "MiniMaxM2ForCausalLM"), ("transformers", "llama.cpp")),
    SupportedModel(
        "mistral3",
        "Ministral 3, Mistral Small 3.1 (text)",
        ("mistral3", "Ministral3ForCausalLM", "Mistral3ForConditionalGeneration"),
        ("transformers", "llama.cpp"),
    ),
    SupportedModel(
        "mistral4",
        "Mistral Small 4 (text)",
        ("mistral4", "Mistral4ForCausalLM"),
        ("transformers", "llama.cpp"),
    ),
    SupportedModel(
        "modern_bert",
        "ModernBERT, gte-modernbert (encoders)",
        ("modern-bert", "ModernBertModel", "ModernBertForSequenceClassification", "ModernBertForMaskedLM"),
        ("transformers", "llama.cpp"),
    ),
    SupportedModel(
        "modern_bert_decoder",
        "Ettin, decoders of ModernBERT",
        ("modern-bert-decoder", "ModernBertDecoderForCausalLM"),
        ("transformers",),
    ),
    SupportedModel(
        "mpnet",
        "MPNet: all-mpnet-base-v2 and its kin (encoders)",
        ("mpnet", "MPNetModel", "MPNetForMaskedLM", "MPNetForSequenceClassification"),
        ("transformers",),
    ),
    SupportedModel("mpt", "MPT", ("mpt", "MptForCausalLM", "MPTForCausalLM"), ("transformers", "llama.cpp")),
    SupportedModel("nanbeige", "Nanbeige 4.2", ("nanbeige", "NanbeigeForCausalLM"), ("numpy", "llama.cpp")),
    SupportedModel("nanochat", "nanochat", ("nanochat", "NanoChatForCausalLM"), ("transformers",)),
    SupportedModel(
        "nemotron", "Nemotron 4, Minitron", ("nemotron", "NemotronForCausalLM"), ("transformers", "llama.cpp")
    ),
    SupportedModel(
        "nemotron_h",
        "Nemotron-H, Nemotron Nano 2, Nemotron 3",
        ("nemotron_h", "nemotron_h_moe", "NemotronHForCausalLM"),
        ("transformers", "llama.cpp"),
    ),
    SupportedModel(
        "nomic_bert",
        "Nomic Embed (encoders)",
        ("nomic-bert", "nomic-bert-moe", "NomicBertModel", "NomicBertForMaskedLM", "NomicBertForPreTraining"),
        ("transformers", "numpy", "llama.cpp"),
    ),
    SupportedModel("olmo", "OLMo 1", ("olmo", "OlmoForCausalLM"), ("transformers", "llama.cpp")),
    SupportedModel(
        "olmo2", "OLMo 2, OLMo 3", ("olmo2", "Olmo2ForCausalLM", "Olmo3ForCausalLM"), ("transformers", "llama.cpp")
    ),
    SupportedModel("olmo_hybrid", "OLMo Hybrid", ("olmo-hybrid", "OlmoHybridForCausalLM"), ("transformers",)),
    SupportedModel("olmoe", "OLMoE", ("olmoe", "OlmoeForCausalLM"), ("transformers", "llama.cpp")),
    SupportedModel("openai_gpt", "GPT 1", ("openai-gpt", "OpenAIGPTLMHeadModel"), ("transformers",)),
    SupportedModel("openelm", "OpenELM", ("openelm", "OpenELMForCausalLM"), ("numpy", "llama.cpp")),
    SupportedModel("opt", "OPT, Galactica", ("opt", "OPTForCausalLM"), ("transformers",)),
    SupportedModel("orion", "Orion", ("orion", "OrionForCausalLM"), ("numpy", "llama.cpp")),
    SupportedModel(
        "pangu",
        "openPangu Embedded",
        ("pangu-embedded", "PanguEmbeddedForCausalLM"),
        ("numpy", "llama.cpp"),
    ),
    SupportedModel("persimmon", "Persimmon", ("persimmon", "PersimmonForCausalLM"), ("transformers",)),
    SupportedModel("phi2", "Phi-1, Phi-1.5, Phi-2", ("phi2", "PhiForCausalLM"), ("transformers", "llama.cpp")),
    SupportedModel("phi3", "Phi-3, Phi-3.5, Phi-4", ("phi3", "Phi3ForCausalLM"), ("transformers", "llama.cpp")),
    SupportedModel("phimoe", "Phi-3.5-MoE", ("phimoe", "PhimoeForCausalLM", "PhiMoEForCausalLM"), ("transformers",)),
    SupportedModel("plamo", "PLaMo 1", ("plamo", "PlamoForCausalLM"), ("numpy", "llama.cpp")),
    SupportedModel("plamo2", "PLaMo 2", ("plamo2", "Plamo2ForCausalLM", "PLaMo2ForCausalLM"), ("numpy", "llama.cpp")),
    SupportedModel("plamo3", "PLaMo 3", ("plamo3", "Plamo3ForCausalLM", "PLaMo3ForCausalLM"), ("numpy", "llama.cpp")),
    SupportedModel("qwen", "Qwen 1", ("qwen", "QWenLMHeadModel"), ("numpy", "llama.cpp")),
    SupportedModel("qwen2", "Qwen2, Qwen2.5", ("qwen2", "Qwen2ForCausalLM"), ("transformers", "llama.cpp")),
    SupportedModel(
        "qwen2moe", "Qwen1.5-MoE, Qwen2-57B-A14B", ("qwen2moe", "Qwen2MoeForCausalLM"), ("transformers", "llama.cpp")
    ),
    SupportedModel(
        "qwen2vl",
        "Qwen2-VL, Qwen2.5-VL (text)",
        ("qwen2vl", "Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"),
        ("transformers", "llama.cpp"),
    ),
    SupportedModel("qwen3", "Qwen3", ("qwen3", "Qwen3ForCausalLM"), ("transformers", "llama.cpp")),
    SupportedModel(
        "qwen35",
        "Qwen3.5 (text)",
        ("qwen35", "Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"),
        ("transformers", "llama.cpp"),
    ),
    SupportedModel(
        "qwen35moe",
        "Qwen3.5 with experts (text)",
        ("qwen35moe", "Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"),
        ("transformers", "llama.cpp"),
    ),
    SupportedModel(
        "qwen3moe", "Qwen3-30B-A3B, Qwen3-235B-A22B", ("qwen3moe", "Qwen3MoeForCausalLM"), ("transformers", "llama.cpp")
    ),
    SupportedModel("qwen3next", "Qwen3-Next", ("qwen3next", "Qwen3NextForCausalLM"), ("transformers", "llama.cpp")),
    SupportedModel(
        "qwen3vl",
        "Qwen3-VL (text)",
        ("qwen3vl", "Qwen3VLForConditionalGeneration"),
        ("transformers", "llama.cpp"),
    ),
    SupportedModel(
        "qwen3vlmoe",
        "Qwen3-VL with experts (text)",
        ("qwen3vlmoe", "Qwen3VLMoeForConditionalGeneration"),
        ("transformers", "llama.cpp"),
    ),
    SupportedModel(
        "recurrent_gemma", "RecurrentGemma", ("recurrentgemma", "RecurrentGemmaForCausalLM"), ("transformers",)
    ),
    SupportedModel("refact", "Refact", ("refact", "GPTRefactForCausalLM"), ("numpy",)),
    SupportedModel("rwkv6", "RWKV-6 Finch", ("rwkv6", "Rwkv6ForCausalLM"), ("numpy", "llama.cpp")),
    SupportedModel("rwkv6qwen2", "QRWKV6", ("rwkv6qwen2", "RWKV6Qwen2ForCausalLM"), ("numpy", "llama.cpp")),
    SupportedModel("rwkv7", "RWKV-7 Goose", ("rwkv7", "RWKV7ForCausalLM"), ("numpy", "llama.cpp")),
    SupportedModel("seed_oss", "Seed-OSS", ("seed_oss", "SeedOssForCausalLM"), ("transformers", "llama.cpp")),
    SupportedModel("smallthinker", "SmallThinker", ("smallthinker", "SmallThinkerForCausalLM"), ("numpy", "llama.cpp")),
    SupportedModel("smollm3", "SmolLM3", ("smollm3", "SmolLM3ForCausalLM"), ("transformers", "llama.cpp")),
    SupportedModel(
        "stablelm",
        "StableLM 3B, Zephyr, StableLM 2",
        ("stablelm", "StableLmForCausalLM"),
        ("transformers", "llama.cpp"),
    ),
    SupportedModel("starcoder", "StarCoder 1", ("starcoder", "GPTBigCodeForCausalLM"), ("transformers", "llama.cpp")),
    SupportedModel("starcoder2", "StarCoder2", ("starcoder2", "Starcoder2ForCausalLM"), ("transformers", "llama.cpp")),
    SupportedModel(
        "step35", "Step 3.5 Flash, Step 3.7 Flash", ("step35", "Step3p5ForCausalLM"), ("transformers", "llama.cpp")
    ),
    SupportedModel(
        "t5_encoder",
        "T5 and mT5, their encoders: sentence-t5, GTR (encoders)",
        ("t5encoder", "T5EncoderModel", "MT5EncoderModel"),
        ("transformers", "llama.cpp"),
    ),
    SupportedModel("vaultgemma", "VaultGemma", ("vaultgemma", "VaultGemmaForCausalLM"), ("transformers",)),
    SupportedModel("xglm", "XGLM", ("xglm", "XGLMForCausalLM"), ("transformers",)),
    SupportedModel("xverse", "XVERSE", ("xverse", "XverseForCausalLM"), ("numpy", "llama.cpp")),
    SupportedModel("zamba2", "Zamba2", ("zamba2", "Zamba2ForCausalLM"), ("transformers",)),
)
