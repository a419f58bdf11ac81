"""/v1/models: which models can be asked for."""

from typing import Literal

import msgspec

from sporelm.serve.config import ModelSpec
from sporelm.serve.endpoint import Call, Endpoint


class ModelCard(msgspec.Struct):
    """A model; `meta` where it is loaded."""

    id: str
    created: int
    owned_by: str = "sporelm"
    object: Literal["model"] = "model"
    loaded: bool = False
    max_context: int | None = None
    chat: bool | None = None  # whether it has a chat template; None while it is not loaded


class ModelList(msgspec.Struct):
    data: list[ModelCard]
    object: Literal["list"] = "list"


def card(call: Call, spec: ModelSpec) -> ModelCard:
    """What is known of a model without loading it."""
    model = call.server.models.loaded.get(spec.name)
    if model is None:
        return ModelCard(spec.name, call.server.began)
    llm = model.llm.llm
    chat = bool(llm.tokenizer.chat_template)
    return ModelCard(spec.name, int(model.loaded_at), loaded=True, max_context=llm.max_context, chat=chat)


async def models(call: Call, body: None) -> ModelList:
    """The models of this server; the first one answers requests that name none."""
    return ModelList([card(call, spec) for spec in call.server.config.models])


async def one_model(call: Call, body: None) -> ModelCard:
    """One model."""
    return card(call, call.server.models.spec(call.request.path_params["model"]))


ENDPOINTS: list[Endpoint] = [
    Endpoint("GET", "/v1/models", models, reply=ModelList),
    Endpoint("GET", "/v1/models/{model:path}", one_model, reply=ModelCard),
]
