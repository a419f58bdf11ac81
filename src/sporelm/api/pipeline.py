"""LMDeploy's interface: a pipeline that takes prompts and returns responses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from sporelm.api.completion import Completion
from sporelm.api.llm import LLM
from sporelm.api.sampling_params import SamplingParams
from sporelm.engine import TokenLogprobs
from sporelm.errors import RequestError, safe_repr

Chat = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Response:
    """The response of a pipeline to one prompt."""

    text: str
    token_ids: list[int]
    finish_reason: str
    input_token_len: int
    generate_token_len: int
    index: int  # of the prompt
    logprobs: list[TokenLogprobs] | None = None  # if requested
    error: str | None = None  # reason of the failure, if finish_reason is "error"

    @classmethod
    def from_completion(cls, completion: Completion, index: int) -> "Response":
        """Convert a completion to LMDeploy's field names."""
        return cls(
            text=completion.text,
            token_ids=completion.token_ids,
            finish_reason=completion.finish_reason,
            input_token_len=len(completion.prompt_token_ids),
            generate_token_len=len(completion.token_ids),
            index=index,
            logprobs=completion.logprobs,
            error=completion.error,
        )


class Pipeline:
    """Answers prompts in one batch. Created by `pipeline`."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm

    @overload
    def __call__(
        self, prompts: str, request_output_len: int = 256, do_preprocess: bool = True, **sampling: Any
    ) -> Response: ...
    @overload
    def __call__(
        self, prompts: Sequence[str | Chat], request_output_len: int = 256, do_preprocess: bool = True, **sampling: Any
    ) -> list[Response]: ...
    def __call__(
        self,
        prompts: str | Sequence[str | Chat],
        request_output_len: int = 256,
        do_preprocess: bool = True,
        **sampling: Any,
    ) -> Response | list[Response]:
        """Return the responses in the order of the prompts; a single response for a single text.

        request_output_len  maximum number of generated tokens
        do_preprocess       apply the chat template to each prompt, a text or messages; False: raw text
        sampling            fields of SamplingParams

        Raises RequestError for an unknown sampling parameter, and for n > 1.
        """
        if unknown := sampling.keys() - SamplingParams.__dataclass_fields__.keys() | (sampling.keys() & {"max_tokens"}):
            known = ", ".join(sorted(SamplingParams.__dataclass_fields__.keys() - {"max_tokens"}))
            names = ", ".join(sorted(unknown))
            raise RequestError(f"unknown sampling parameter {names}: there are request_output_len, {known}")
        params = SamplingParams(max_tokens=request_output_len, **sampling)
        if params.n > 1:
            raise RequestError(f"n is {params.n}: a pipeline returns one response per prompt; use LLM.generate")
        if not isinstance(prompts, str | Sequence):
            raise RequestError(f"prompts is {safe_repr(prompts)}: it must be a string, or a list of strings and chats")
        prompt_list = [prompts] if isinstance(prompts, str) else list(prompts)
        ids = [self._encode(prompt, do_preprocess) for prompt in prompt_list]
        completions = self.llm.generate(ids, params)
        responses = [Response.from_completion(completion, index) for index, completion in enumerate(completions)]
        return responses[0] if isinstance(prompts, str) else responses

    def close(self) -> None:
        """Free the model."""
        self.llm.close()

    def __enter__(self) -> "Pipeline":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _encode(self, prompt: str | Chat, do_preprocess: bool) -> list[int]:
        if not do_preprocess:
            if not isinstance(prompt, str):
                raise RequestError("messages need the chat template: set do_preprocess to True, or give a text")
            return self.llm.prompt_ids(prompt)
        messages: Chat = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        return self.llm.chat_ids(self.llm.render(messages))


def pipeline(model: str | Path | None = None, device: str = "cpu", tp: int = 1, **options: Any) -> Pipeline:
    """Load a model for prompts. `tp` is the number of tensor-parallel ranks; `options` are others of `LLM`."""
    return Pipeline(LLM(model, device=device, tp=tp, **options))
