"""What clients are told of errors names no place of the server."""

import logging

import pytest

from sporelm.errors import BackendError, MemoryShortage, ModelFileError, ModelNotFound, RequestError, SporeError
from sporelm.serve.config import ModelSpec
from sporelm.serve.failures import refusal_of, without_paths
from sporelm.serve.places import named, unusable, without

SPEC = ModelSpec("big", "/srv/my models/big.gguf")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("/srv/models/x.gguf: it is damaged", "x.gguf: it is damaged"),
        ("cannot read '/srv/models/x.gguf', which", "cannot read 'x.gguf', which"),
        (r"C:\Users\a\x.gguf is no model", "x.gguf is no model"),
        (r"\\host\share\x.gguf is no model", "x.gguf is no model"),
        ("see /docs, and ask for application/json", "see /docs, and ask for application/json"),
        ("'#/$defs/x/y' points to nothing", "'#/$defs/x/y' points to nothing"),
        ("http://a.example/b/c is elsewhere", "http://a.example/b/c is elsewhere"),
        ("1/2/3 and a/b/c are no places", "1/2/3 and a/b/c are no places"),
    ],
)
def test_paths_are_left_out(text: str, told: str) -> None:
    assert without_paths(text) == told


def test_a_models_own_place_is_its_name() -> None:
    places = named(SPEC, "/var/store/big.gguf", "smollm2")
    text = "the chat template of /srv/my models/big.gguf refuses; /var/store/big.gguf/tokenizer.json is damaged"
    assert without(text, places) == "the chat template of big refuses; big/tokenizer.json is damaged"
    assert named(ModelSpec("default", None)) == {}
    assert "smollm2" not in named(ModelSpec("stored", "smollm2"), "smollm2"), "a stored name is no place"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ModelFileError("/srv/my models/big.gguf: tensor 'x' is cut off"), 500),
        (ModelNotFound("no model at '/srv/my models/big.gguf': stored: secret-model"), 500),
        (RequestError("--max-context is 0: it must be at least 1"), 500),
        (MemoryShortage("/srv/my models/big.gguf needs 9 GB"), 503),
        (BackendError("the back-end fails at /srv/other/lib.so"), 503),
    ],
)
def test_a_model_that_cannot_be_loaded(error: SporeError, status: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, logger="sporelm.serve"):
        refusal = unusable(SPEC, error)
    assert refusal.status == status
    assert "model big cannot be loaded" in refusal.message
    for word in ("/srv", "my models", "secret-model"):
        assert word not in refusal.message
    assert str(error) in caplog.text


def test_what_is_no_fault_of_the_request_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, logger="sporelm.serve"):
        told = refusal_of(ModelFileError("/var/lib/sporelm/sessions/x.session: it is damaged"))
        refusal_of(RequestError("temperature is -1"))
    assert told.message == "x.session: it is damaged"
    assert "/var/lib/sporelm/sessions" in caplog.text
    assert "temperature" not in caplog.text
