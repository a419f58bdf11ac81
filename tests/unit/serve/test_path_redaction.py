"""Errors for clients contain no paths of the server."""

import logging

import pytest

from sporelm.errors import BackendError, MemoryShortage, ModelFileError, ModelNotFound, RequestError, SporeError
from sporelm.serve.http.api_errors import api_error_from, model_load_error
from sporelm.serve.http.path_redaction import redact_paths, replace_paths, spec_paths
from sporelm.serve.serve_config import ModelSpec

SPEC = ModelSpec("big", "/srv/my models/big.gguf")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("/srv/models/x.gguf: it is damaged", "x.gguf: it is damaged"),
        ("cannot read '/srv/models/x.gguf', which", "cannot read 'x.gguf', which"),
        (r"C:\Users\a\x.gguf is damaged", "x.gguf is damaged"),
        (r"\\host\share\x.gguf is damaged", "x.gguf is damaged"),
        ("see /docs, and ask for application/json", "see /docs, and ask for application/json"),
        ("'#/$defs/x/y' points to nothing", "'#/$defs/x/y' points to nothing"),
        ("http://a.example/b/c is elsewhere", "http://a.example/b/c is elsewhere"),
        ("1/2/3 and a/b/c are relative", "1/2/3 and a/b/c are relative"),
    ],
)
def test_paths_are_redacted(text: str, told: str) -> None:
    assert redact_paths(text) == told


def test_a_models_own_path_is_replaced_by_its_name() -> None:
    places = spec_paths(SPEC, "/var/store/big.gguf", "smollm2")
    text = "the chat template of /srv/my models/big.gguf refuses; /var/store/big.gguf/tokenizer.json is damaged"
    assert replace_paths(text, places) == "the chat template of big refuses; big/tokenizer.json is damaged"
    assert spec_paths(ModelSpec("default", None)) == {}
    assert "smollm2" not in spec_paths(ModelSpec("stored", "smollm2"), "smollm2"), "a stored name is not a path"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ModelFileError("/srv/my models/big.gguf: tensor 'x' is cut off"), 500),
        (ModelNotFound("no model at '/srv/my models/big.gguf': stored: secret-model"), 500),
        (RequestError("the option max_context is 0: it must be at least 1"), 500),
        (MemoryShortage("/srv/my models/big.gguf needs 9 GB"), 503),
        (BackendError("the back-end fails at /srv/other/lib.so"), 503),
    ],
)
def test_a_model_that_cannot_be_loaded(error: SporeError, status: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, logger="sporelm.serve"):
        refusal = model_load_error(SPEC.name, spec_paths(SPEC), error)
    assert refusal.status == status
    assert "model big cannot be loaded" in refusal.message
    for word in ("/srv", "my models", "secret-model"):
        assert word not in refusal.message
    assert str(error) in caplog.text


def test_errors_that_the_request_did_not_cause_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, logger="sporelm.serve"):
        told = api_error_from(ModelFileError("/var/lib/sporelm/sessions/x.session: it is damaged"))
        api_error_from(RequestError("temperature is -1"))
    assert told.message == "x.session: it is damaged"
    assert "/var/lib/sporelm/sessions" in caplog.text
    assert "temperature" not in caplog.text
