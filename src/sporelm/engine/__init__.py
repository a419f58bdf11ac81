"""The engine, which continues token ids: requests, the scheduler, the KV cache, the runner and sampling."""

from sporelm.engine.engine import Engine
from sporelm.engine.engine_config import EngineConfig
from sporelm.engine.kv import KvCache, KvSequence
from sporelm.engine.metrics import Metrics
from sporelm.engine.model_output import ModelOutput
from sporelm.engine.request import FinishReason, Request
from sporelm.engine.runner import Runner
from sporelm.engine.sampling import Sampler, Sampling, TokenLogprobs
from sporelm.engine.scheduler import Scheduler, StepOutput
from sporelm.engine.step import ScheduledSequence, Step
from sporelm.engine.worker import LoadedModel, Worker

__all__ = [
    "Engine",
    "EngineConfig",
    "FinishReason",
    "KvCache",
    "KvSequence",
    "LoadedModel",
    "Metrics",
    "ModelOutput",
    "Request",
    "Runner",
    "Sampler",
    "Sampling",
    "ScheduledSequence",
    "Scheduler",
    "Step",
    "StepOutput",
    "TokenLogprobs",
    "Worker",
]
