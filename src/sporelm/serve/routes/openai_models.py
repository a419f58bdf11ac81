"""/v1/models: the models of the server."""

import asyncio
from datetime import UTC, datetime
from typing import Literal

import msgspec

from sporelm.serve.http.api_call import ApiCall
from sporelm.serve.http.endpoint import Endpoint
from sporelm.serve.model_pool.model_info import has_vision_tower, read_model_info
from sporelm.serve.serve_config import ModelSpec


class ModelCard(msgspec.Struct):
    """A model, with the fields of OpenAI and of Anthropic, whose clients use the same path."""

    id: str
    created: int
    display_name: str
    created_at: str
    owned_by: str = "sporelm"
    object: Literal["model"] = "model"
    type: Literal["model"] = "model"
    loaded: bool = False
    max_context: int | None = None
    max_input_tokens: int | None = None  # the same, for Anthropic's clients
    adapters: list[str] = []  # LoRA adapters that requests may name; the first one is the default
    chat: bool | None = None  # whether it has a chat template; None where its files are missing or damaged
    vision: bool | None = None  # whether messages may contain images; None where its files are missing or damaged


class ModelList(msgspec.Struct):
    data: list[ModelCard]
    first_id: str
    last_id: str
    has_more: bool = False
    object: Literal["list"] = "list"


async def model_card(call: ApiCall, spec: ModelSpec) -> ModelCard:
    """Return the card of a model without loading it: if it is not loaded, from the headers of its files."""
    model = call.server.models.loaded.get(spec.name)
    if model is None:
        info = await asyncio.to_thread(read_model_info, spec)
        has_template = info.has_chat_template if info is not None else None
        if info is not None and call.server.config.engine.get("chat_template") is not None:
            has_template = info.is_generative  # the server's own template replaces those of all such models
        started_at = call.server.started_at
        vision = await asyncio.to_thread(has_vision_tower, spec)
        return ModelCard(spec.name, started_at, spec.name, rfc3339(started_at), chat=has_template, vision=vision)
    llm = model.llm
    loaded_at = int(model.loaded_at)
    return ModelCard(
        spec.name,
        loaded_at,
        spec.name,
        rfc3339(loaded_at),
        loaded=True,
        max_context=llm.max_context,
        max_input_tokens=llm.max_context,
        adapters=llm.adapters.names,
        chat=bool(llm.tokenizer.chat_template),
        vision=model.can_see,
    )


def rfc3339(seconds: float) -> str:
    """Return a time, given in seconds since 1970, as RFC 3339."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


async def models(call: ApiCall, body: None) -> ModelList:
    """The models of this server; the first one answers requests that name none."""
    cards = [await model_card(call, spec) for spec in call.server.config.models]
    return ModelList(cards, cards[0].id, cards[-1].id)


async def one_model(call: ApiCall, body: None) -> ModelCard | ModelList:
    """One model; all models if its name is empty, as in `/v1/models/`."""
    name = call.request.path_params["model"]
    return await model_card(call, call.server.models.spec(name)) if name else await models(call, body)


ENDPOINTS: list[Endpoint] = [
    Endpoint("GET", "/v1/models", models, reply=ModelList),
    Endpoint("GET", "/v1/models/{model:path}", one_model, reply=ModelCard),
]
