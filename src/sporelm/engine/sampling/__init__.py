"""Sampling: the options of requests, and the sampler, which samples for all requests of a step at once."""

from sporelm.engine.sampling.sampler import NOT_A_TOKEN, Sampler, SamplerOutput, TokenLogprobs
from sporelm.engine.sampling.sampler_params import Sampling

__all__ = ["NOT_A_TOKEN", "Sampler", "SamplerOutput", "Sampling", "TokenLogprobs"]
