"""The one-liner that users of LMDeploy know: a pipeline that takes prompts and gives responses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from sporelm.api.completion import Completion
from sporelm.api.llm import LLM
from sporelm.api.params import SamplingParams
from sporelm.engine import TokenScores
from sporelm.errors import RequestError, shown

Chat = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Response:
    """An answer of a pipeline."""

    text: str
    token_ids: list[int]
    finish_reason: str
    input_token_len: int
    generate_token_len: int
    index: int  # of the prompt it answers
    logprobs: list[TokenScores] | None = None  # if asked for
    error: str | None = None  # what went wrong, if finish_reason is "error"

    @classmethod
    def of(cls, completion: Completion, index: int) -> "Response":
        """A completion under the names that pipelines use."""
        prompt, ids = completion.prompt_token_ids, completion.token_ids
        counts = len(prompt), len(ids), index
        return cls(completion.text, ids, completion.finish_reason, *counts, completion.logprobs, completion.error)


class Pipeline:
    """Answers prompts together. Made by `pipeline`."""

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
        """Responses to prompts in their order; one response if there is one prompt that is no list.

        request_output_len  tokens at most
        do_preprocess       put each prompt, a text or messages, into the model's chat template; False: raw text
        sampling            fields of SamplingParams

        Raises RequestError for a sampling value that does not exist, and for n > 1.
        """
        if unknown := sampling.keys() - SamplingParams.__dataclass_fields__.keys() | (sampling.keys() & {"max_tokens"}):
            known = ", ".join(sorted(SamplingParams.__dataclass_fields__.keys() - {"max_tokens"}))
            raise RequestError(f"no sampling value {', '.join(sorted(unknown))}: there are request_output_len, {known}")
        params = SamplingParams(max_tokens=request_output_len, **sampling)
        if params.n > 1:
            raise RequestError(f"n is {params.n}: a pipeline gives one response to each prompt; use LLM.generate")
        if not isinstance(prompts, str | Sequence):
            raise RequestError(f"prompts is {shown(prompts)}: it must be a text, or a list of texts and chats")
        several = [prompts] if isinstance(prompts, str) else list(prompts)
        ids = [self._ids(prompt, do_preprocess) for prompt in several]
        completions = self.llm.generate(ids, params)
        responses = [Response.of(completion, index) for index, completion in enumerate(completions)]
        return responses[0] if isinstance(prompts, str) else responses

    def close(self) -> None:
        """Free the model."""
        self.llm.close()

    def __enter__(self) -> "Pipeline":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _ids(self, prompt: str | Chat, do_preprocess: bool) -> list[int]:
        if not do_preprocess:
            if not isinstance(prompt, str):
                raise RequestError("messages need the chat template: leave do_preprocess at True, or give a text")
            return self.llm.prompt_ids(prompt)
        messages: Chat = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        return self.llm.chat_ids(self.llm.render(messages))


def pipeline(model: str | Path | None = None, device: str = "cpu", tp: int = 1, **options: Any) -> Pipeline:
    """Open a model for prompts. `options` are those of `LLM`. Raises RequestError for tp other than 1."""
    if tp != 1:
        raise RequestError(f"tp is {tp}: tensor parallelism is not supported, give tp=1")
    return Pipeline(LLM(model, device=device, **options))
