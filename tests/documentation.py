"""The code blocks of the documentation, and a folder with the files that they name."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import quantized_folders
from chat_folders import write_chat_folder
from drawn_families import ENCODERS as IMAGE_ENCODERS
from drawn_families import FIRST, draw_pixels
from encoder_files import write_encoder
from families import ENCODERS
from hf_folders import tokenizer_json, write_tokenizer
from lora_files import write_peft
from sporelm.tools.hf.from_hf import from_hf
from sporelm.tools.hf.mmproj_from_hf import mmproj_from_hf
from sporelm.tools.output_file import OutputFile, save_models
from tiny_models import WIDE

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False}


@dataclass(frozen=True)
class Block:
    """A fenced block: the page, the line on which its text begins, its language ("" for a shell's or plain text)."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks() -> Iterator[Block]:
    """Every block of every page, in order."""
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        for match in FENCE.finditer(text):
            yield Block(path.name, text.count("\n", 0, match.start(2)) + 1, match[1].strip(), match[2])


def shell_lines(block: Block) -> Iterator[tuple[int, str]]:
    """Line number and text of each command in a block, without the remark behind it.

    Where a block shows a prompt, `$ `, lines without one are output. A backslash joins lines.
    """
    text = block.text.replace("\\\n", "")
    shows_prompt = any(line.startswith("$ ") for line in text.splitlines())
    for number, line in enumerate(text.splitlines(), block.line):
        if line.startswith("$ ") or not shows_prompt:
            command = re.split(r"\s+# |\s{4,}(?=\S)", line.removeprefix("$ "))[0].strip()
            if command:
                yield number, command


def write_files(folder: Path, story: Path) -> Mapping[str, str]:
    """Write what the blocks name into a folder; return the variables of the environment that they need."""
    chat_folder = write_chat_folder(story, folder / "talker", max_position_embeddings=8192)  # as pages ask for it
    model = folder / "model.gguf"
    save_models([OutputFile(model, from_hf(chat_folder).model)])
    for name in ("small.gguf", "store/smollm2/model.gguf"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(model.read_bytes())
    encoders = {case.name: case for case in ENCODERS}
    for name, kind in (("bge-small-en-v1.5", "bert"), ("bge-small.gguf", "bert"), ("reranker.gguf", "bert-scores")):
        write_encoder(folder / name, encoders[kind])
    prompts = {"prompts": {"query": "Represent this sentence: "}}
    (folder / "bge-small-en-v1.5" / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    for number, name in enumerate(("sql-adapter", "tone.gguf", "poems")):
        write_peft(folder / name, story_pairs(story, number))
    scheme, settings = quantized_folders.gptq(), GPTQ
    quantized_folders.write(folder / "Qwen-GPTQ-Int4", WIDE, scheme, settings)
    write_seeing_models(folder)
    (folder / "letter.txt").write_text("Once upon a time there was a letter.", encoding="utf-8")
    (folder / "prompt.txt").write_text("Once upon a time", encoding="utf-8")
    (folder / "keys.txt").write_text("anna:a-secret-of-some-length\n", encoding="utf-8")
    return {"SPORE_MODEL_STORE": str(folder / "store")}


def write_seeing_models(folder: Path) -> None:
    """Write models that see and an mmproj file for model.gguf, all of drawn weights, and pictures."""
    from PIL import Image

    for name, family in (("Qwen2-VL-2B-Instruct", "qwen2vl"), ("smolvlm", "idefics3")):
        FIRST[family].write(folder / name)
    llava = FIRST["llava"]
    text = {**llava.config["text_config"], "hidden_size": 128}
    tower = llava._replace(config={**llava.config, "text_config": text}).write(folder / "llava")
    save_models([OutputFile(folder / "mmproj.gguf", mmproj_from_hf(tower).model)])
    clip = next(each for each in IMAGE_ENCODERS if each.module == "clip")
    words = {**clip.config["text_config"], "vocab_size": 300}
    clip = clip._replace(config={**clip.config, "text_config": words})
    write_tokenizer(clip.write(folder / "clip-vit-base-patch32"), tokenizer_json(300))
    for name in ("cat.png", "photo.jpg"):
        Image.fromarray(draw_pixels(90, 60)).save(folder / name)


def story_pairs(story: Path, seed: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Matrices of an adapter of the story model, of rank 4."""
    from safetensors.numpy import load_file

    random = np.random.default_rng(seed)
    found: dict[str, Any] = {}
    for name, weight in load_file(story / "model.safetensors").items():
        if name.endswith(("q_proj.weight", "v_proj.weight", "down_proj.weight")):
            out, width = weight.shape
            found[name] = (
                random.standard_normal((4, width), np.float32) * np.float32(width**-0.5),
                random.standard_normal((out, 4), np.float32) * np.float32(0.1),
            )
    return found
