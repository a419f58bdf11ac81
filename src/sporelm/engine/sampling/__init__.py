"""The choice of the next token: what requests can ask for, and the sampler that does it for all of a step at once."""

from sporelm.engine.sampling.params import Sampling
from sporelm.engine.sampling.sampler import NOT_A_TOKEN, Sampler, SamplerOutput, TokenLogprobs

__all__ = ["NOT_A_TOKEN", "Sampler", "SamplerOutput", "Sampling", "TokenLogprobs"]
