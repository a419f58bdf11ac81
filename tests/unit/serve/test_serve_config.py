"""A server's configuration: flags before the environment before the file, every wrong value named."""

from pathlib import Path

import pytest

from sporelm import settings
from sporelm.errors import RequestError
from sporelm.serve.model_pool.model_pool import ModelPool
from sporelm.serve.serve_config import ModelSpec, ServeConfig, load_config, values_from_file


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "serve.toml"
    path.write_text(
        'host = "0.0.0.0"\nport = 1234\nmax_body = "2M"\nrequest_seconds = 5\napi_keys = ["a:x"]\n'
        'cors_origins = ["https://a.example"]\n[models]\nsmall = "one.gguf"\n"big/one" = "two"\n'
        '[engine]\nthreads = 2\nkv_memory = "1G"\n'
    )
    return path


def test_a_file_can_set_everything(written: Path) -> None:
    config = load_config({}, written)
    assert (config.host, config.port, config.max_body, config.request_seconds) == ("0.0.0.0", 1234, 2_000_000, 5.0)
    assert config.models == (ModelSpec("small", "one.gguf"), ModelSpec("big/one", "two"))
    assert [key.owner for key in config.keys] == ["a"]
    assert config.engine == {"threads": 2, "kv_memory": "1G"}
    assert not config.is_loopback


def test_flags_override_the_environment_which_overrides_the_file(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def set_variable(variable: str, value: str) -> None:
        monkeypatch.setitem(settings.__dict__[variable].__dict__, "value", value)

    set_variable("SERVE_PORT", "99")
    set_variable("API_KEY", "b:env")
    config = load_config({"host": "127.0.0.1", "engine": {"threads": 1, "kv": None}}, written)
    assert (config.host, config.port, config.is_loopback) == ("127.0.0.1", 99, True)
    assert [key.owner for key in config.keys] == ["b"]
    assert config.engine == {"threads": 1, "kv_memory": "1G"}
    assert load_config({"port": 7, "api_keys": ["c:flag"]}, written).port == 7


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prot = 1", "'prot' is unknown: known are models"),
        ('port = "1"', "port is '1': it must be a whole number"),
        ("port = 70000", "port is 70000: it must be from 0 to 65535"),
        ("max_body = 1", "max_body is 1: it must be from 1024"),
        ("max_bodies = '1M'", "max_bodies is 1000000: it must be at least max_body, which is 8388608"),
        (
            "keep_alive_keys = ['ops']",
            "keep_alive_keys has 'ops', which is not the name of an API key",
        ),
        ("[engine]\nthread = 1", "engine.thread is unknown"),
        ("[engine]\neager = 1", "engine.eager is 1: it must be true or false"),
        ('[models]\n"../x" = "a"', "a model's name is '../x'"),
        ("host = ", r"serve\.toml' is not valid TOML"),
        ("log = 'loud'", "log is 'loud': it must be text or json"),
        ("tls_cert = 'a'", "TLS needs both files"),
        ("allowed_hosts = ['x:80']", "an allowed host is 'x:80'"),
        ("[models]\na = ''", "the model 'a' has no file"),
        ("cors_origins = ['*']", r"a CORS origin is '\*'"),
    ],
)
def test_an_error_in_a_file_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "serve.toml"
    path.write_text(text)
    with pytest.raises(RequestError, match=said):
        load_config({}, path)


def test_the_file_of_the_docs_can_be_read_and_asks_for_a_context_that_the_default_model_has(tmp_path: Path) -> None:
    docs = (Path(__file__).parents[3] / "docs" / "server.md").read_text(encoding="utf-8")
    path = tmp_path / "serve.toml"
    path.write_text(docs.partition("```toml\n")[2].partition("```")[0])
    found = values_from_file(path)
    assert found["engine"]["max_context"] <= 8192


def test_errors_name_an_option_as_its_source_does(written: Path) -> None:
    text = "the option kv_memory is 1, the option max_context is 2, the option threads 3"
    models = ModelPool(load_config({"engine": {"threads": 1}}, written))
    assert models._with_file_names(text) == ("engine.kv_memory is 1, the option max_context is 2, the option threads 3")


def test_a_byte_order_mark_is_ignored_and_hosts_may_be_addresses(tmp_path: Path) -> None:
    path = tmp_path / "serve.toml"
    path.write_text("\ufeffallowed_hosts = ['a.example', '::1', '10.0.0.1']\n", encoding="utf-8")
    assert load_config({}, path).allowed_hosts == ("a.example", "::1", "10.0.0.1")


def test_names_of_models() -> None:
    assert ModelSpec.parse("a=b/c.gguf") == ModelSpec("a", "b/c.gguf")
    assert ModelSpec.parse("folder/My Model.gguf") == ModelSpec("My-Model", "folder/My Model.gguf")
    assert ModelSpec.parse("hf:owner/name:q4.gguf").name == "name:q4"
    for wrong in ("", "..", "a..b", "/a", "a b", "x" * 129):
        with pytest.raises(RequestError, match="a model's name is"):
            ModelSpec(wrong, None)
    with pytest.raises(RequestError, match="two models have the name 'm'"):
        ServeConfig(models=(ModelSpec("m", "a"), ModelSpec("m", "b")))


def test_each_model_can_have_a_vision_tower_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text('[models]\nblind = "a.gguf"\neyes = {model = "b.gguf", mmproj = "c.gguf"}\n')
    assert load_config({}, file).models == (ModelSpec("blind", "a.gguf"), ModelSpec("eyes", "b.gguf", "c.gguf"))
    flags = {"mmproj": ["folder/x=y.gguf", "eyes=other.gguf"]}
    assert [spec.mmproj for spec in load_config(flags, file).models] == ["folder/x=y.gguf", "other.gguf"]
    assert load_config({"mmproj": ["d.gguf"]}).models == (ModelSpec("smollm2", None, "d.gguf"),)


@pytest.mark.parametrize(
    ("towers", "message"),
    [
        (["other=a.gguf"], "mmproj is 'other=a.gguf': give NAME=FILE, where NAME is a model (m, n)"),
        (["n="], "mmproj is 'n='"),
        ([""], "mmproj is ''"),
        (["a.gguf", "m=b.gguf"], "mmproj is given twice for the model 'm'"),
    ],
)
def test_vision_towers_of_no_model_are_refused(towers: list[str], message: str) -> None:
    with pytest.raises(RequestError) as caught:
        load_config({"models": ["m=a", "n=b"], "mmproj": towers})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('{mmproj = "a"}', "models.m has no model"),
        ('{model = "a", path = "b"}', "models.m.path is unknown"),
        ('{model = "a", mmproj = 3}', "models.m.mmproj is 3: it must be a string"),
        ("[]", "models.m is []: it must be a string"),
    ],
)
def test_tables_of_models_are_checked(tmp_path: Path, table: str, message: str) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(f"[models]\nm = {table}\n")
    with pytest.raises(RequestError) as caught:
        load_config({}, file)
    assert message in str(caught.value)
