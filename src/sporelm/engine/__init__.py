"""Continues token ids: requests, the scheduler, pages of keys and values, the runner and the choice of tokens."""

from sporelm.engine.engine import Engine
from sporelm.engine.kv import KvCache, KvSequence
from sporelm.engine.limits import Limits
from sporelm.engine.metrics import Metrics
from sporelm.engine.request import FinishReason, Request
from sporelm.engine.runner import Runner, Scores
from sporelm.engine.sampling import Sampler, Sampling, TokenScores
from sporelm.engine.scheduler import Advance, Scheduler
from sporelm.engine.step import Part, Step
from sporelm.engine.worker import LoadedModel, Worker

__all__ = [
    "Advance",
    "Engine",
    "FinishReason",
    "KvCache",
    "KvSequence",
    "Limits",
    "LoadedModel",
    "Metrics",
    "Part",
    "Request",
    "Runner",
    "Sampler",
    "Sampling",
    "Scheduler",
    "Scores",
    "Step",
    "TokenScores",
    "Worker",
]
