"""Servers on a real socket, with the story model."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chat_folders import write_chat_folder
from sporelm.serve.serve_config import ModelSpec, ServeConfig
from system.serve.running_server import Running, run_server, server_options


@pytest.fixture(scope="session")
def chatty(story: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The story model with a chat template that puts the messages in a row."""
    return write_chat_folder(story, tmp_path_factory.mktemp("chatty") / "chatty")


@pytest.fixture(scope="module")
def served(chatty: Path) -> Iterator[Running]:
    """A server of one chat model, `story`, without keys."""
    running, stop = run_server(ServeConfig(models=(ModelSpec("story", str(chatty)),), **server_options()))
    yield running
    stop()


@pytest.fixture
def serve(chatty: Path) -> Iterator[Callable[..., Running]]:
    """Start servers with a test's own configuration."""
    stops = []

    def start(open_model: Any = None, **more: Any) -> Running:
        fields = server_options(models=(ModelSpec("story", str(chatty)),)) | more
        running, stop = run_server(ServeConfig(**fields), open_model)
        stops.append(stop)
        return running

    yield start
    for stop in stops:
        stop()
