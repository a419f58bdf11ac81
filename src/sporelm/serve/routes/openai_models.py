"""/v1/models: which models can be asked for."""

import asyncio
from datetime import UTC, datetime
from typing import Literal

import msgspec

from sporelm.models import Encoder, model_of
from sporelm.serve.config import ModelSpec
from sporelm.serve.endpoint import Call, Endpoint
from sporelm.serve.model_facts import facts_of


class ModelCard(msgspec.Struct):
    """A model, in the words of OpenAI and of Anthropic, whose clients ask for it at the same path."""

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
    adapters: list[str] = []  # (LoRA) that requests may name; where they name none they have the first
    chat: bool | None = None  # whether it has a chat template; None where its files are not there, or are broken


class ModelList(msgspec.Struct):
    data: list[ModelCard]
    first_id: str
    last_id: str
    has_more: bool = False
    object: Literal["list"] = "list"


async def card(call: Call, spec: ModelSpec) -> ModelCard:
    """What is known of a model without loading it: of one that is not loaded, what the headers of its files say."""
    model = call.server.models.loaded.get(spec.name)
    if model is None:
        facts = await asyncio.to_thread(facts_of, spec)
        chat = facts.chat if facts is not None else None
        if facts is not None and call.server.config.engine.get("chat_template") is not None:
            chat = not issubclass(model_of(facts.family), Encoder)  # all models that generate have that one
        return ModelCard(spec.name, call.server.began, spec.name, when(call.server.began), chat=chat)
    llm, loaded_at = model.llm.llm, int(model.loaded_at)
    chat, most = bool(llm.tokenizer.chat_template), llm.max_context
    return ModelCard(
        spec.name,
        loaded_at,
        spec.name,
        when(loaded_at),
        loaded=True,
        max_context=most,
        max_input_tokens=most,
        adapters=llm.adapters.names,
        chat=chat,
    )


def when(seconds: float) -> str:
    """A time, of seconds since 1970, as RFC 3339 writes it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


async def models(call: Call, body: None) -> ModelList:
    """The models of this server; the first one answers requests that name none."""
    cards = [await card(call, spec) for spec in call.server.config.models]
    return ModelList(cards, cards[0].id, cards[-1].id)


async def one_model(call: Call, body: None) -> ModelCard | ModelList:
    """One model; all of them where its name is empty, as in `/v1/models/`."""
    name = call.request.path_params["model"]
    return await card(call, call.server.models.spec(name)) if name else await models(call, body)


ENDPOINTS: list[Endpoint] = [
    Endpoint("GET", "/v1/models", models, reply=ModelList),
    Endpoint("GET", "/v1/models/{model:path}", one_model, reply=ModelCard),
]
