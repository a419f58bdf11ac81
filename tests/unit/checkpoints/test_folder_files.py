"""The files of a repository that are fetched as a Hugging Face folder."""

from sporelm.files.store.hub_address import select_folder_files

MODEL = ["config.json", "model.safetensors", "tokenizer.json"]
SENTENCES = [  # of an embedding model: without them its rows would be pooled otherwise
    *("1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"),
    *("config_sentence_transformers.json", "modules.json", "sentence_bert_config.json"),
]
OTHERS = [
    *("README.md", "pytorch_model.bin", "2_Dense/pytorch_model.bin", "onnx/model.onnx", "onnx/config.json"),
    *("original/model.safetensors", "openvino/1_Pooling/config.json", "rust_model.ot", "train_script.py"),
]


def test_a_folder_of_an_embedding_model_is_fetched_with_its_modules() -> None:
    assert select_folder_files([*MODEL, *SENTENCES, *OTHERS]) == sorted(MODEL + SENTENCES)
