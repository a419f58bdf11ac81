"""`spore serve --lora`: answers have the first adapter of the first model, or the one that a request names."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from hf_folders import write_model
from lora_files import merged, random_pairs, write_gguf_adapter, write_peft
from sporelm import LLM, LoraAdapter
from sporelm.cli import main
from sporelm.cli.serve import parse_config
from sporelm.errors import RequestError
from sporelm.serve.serve_config import ModelSpec, ServeConfig, load_config
from system.serve.running_server import Running, run_server, server_options
from tiny_models import WIDE

PROMPT = [1, 9, 17, 33, 5, 99, 42] * 10
RED, LEAF = random_pairs(WIDE, 2), random_pairs(WIDE, 3, seed=1)
ASKED: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and two adapters."""
    made = tmp_path_factory.mktemp("adapters")
    write_model(made / "tiny", WIDE)
    write_peft(made / "red", RED, 4.0)
    write_gguf_adapter(made / "leaf.gguf", WIDE, LEAF, 4.0)
    return made


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[Running]:
    specs = (ModelSpec("tiny", str(folder / "tiny")), ModelSpec("plain", str(folder / "tiny")))
    adapters = (LoraAdapter(folder / "red"), LoraAdapter(folder / "leaf.gguf", "leaf", 0.5))
    running, stop = run_server(ServeConfig(**server_options(models=specs, adapters=adapters)))
    yield running
    stop()


@pytest.fixture(scope="module")
def http(running: Running) -> httpx.Client:
    return running.client()


def text(http: httpx.Client, **more: Any) -> str:
    answer = http.post("/v1/completions", json=ASKED | more)
    assert answer.status_code == 200, answer.text
    found: str = answer.json()["choices"][0]["text"]
    return found


def test_answers_have_the_first_adapter_or_the_one_that_is_named(http: httpx.Client) -> None:
    first, red, leaf = text(http), text(http, adapter="red"), text(http, adapter="leaf")
    none, plain = text(http, adapter=""), text(http, model="plain")
    assert first == red
    assert none == plain
    assert len({red, leaf, plain}) == 3
    refused = http.post("/v1/completions", json=ASKED | {"adapter": "blue"})
    assert refused.status_code == 400
    assert "no adapter is called 'blue': loaded are red, leaf" in refused.json()["error"]["message"]
    assert http.post("/v1/completions", json=ASKED | {"adapter": "red", "model": "plain"}).status_code == 400


def test_openais_client_names_an_adapter(running: Running, http: httpx.Client) -> None:
    with openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client:
        asked: Any = {"model": "tiny", "prompt": PROMPT, "max_tokens": 12, "temperature": 0}
        made = client.completions.create(**asked, extra_body={"adapter": "leaf", "ignore_eos": True})
        assert made.choices[0].text == text(http, adapter="leaf")


def test_models_list_their_adapters(http: httpx.Client) -> None:
    assert text(http, model="plain")  # which loads it
    assert [each["adapters"] for each in http.get("/v1/models").json()["data"]] == [["red", "leaf"], []]


def test_the_scores_of_an_echoed_prompt_are_the_adapters(http: httpx.Client, folder: Path, tmp_path: Path) -> None:
    whole = write_model(tmp_path / "merged", WIDE, change=merged(WIDE, LEAF, 0.5 * 4 / 3))
    with LLM(whole, threads=1) as other:
        scores = other.logits(PROMPT)
    rows = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    asked = {"prompt": PROMPT, "max_tokens": 0, "echo": True, "logprobs": 0, "adapter": "leaf"}
    told = http.post("/v1/completions", json=asked).json()["choices"][0]["logprobs"]["token_logprobs"]
    assert told[0] is None
    np.testing.assert_allclose(told[1:], rows[np.arange(len(PROMPT) - 1), PROMPT[1:]], atol=1e-3, rtol=0)


def test_the_option_and_the_file_say_the_same(folder: Path, tmp_path: Path) -> None:
    given = [f"red={folder / 'red'}", f"{folder / 'leaf.gguf'}@0.5"]
    words = [str(folder / "tiny"), "--lora", given[0], "--lora", given[1]]
    flags = parse_config(main.load_command("serve").make_parser().parse_args(words)).adapters
    file = tmp_path / "serve.toml"
    file.write_text(f"adapters = {given!r}\n")
    assert load_config({}, file).adapters == flags
    assert [(each.resolved_name, each.scale) for each in flags] == [("red", 1.0), ("leaf", 0.5)]
    file.write_text('adapters = ["a@half"]\n')
    with pytest.raises(RequestError, match=r"scale after @ is not a number \(got 'half'\)"):
        load_config({}, file)
