"""`spore run`: complete a prompt. The text goes to stdout as it comes, the figures to stderr."""

import argparse
import contextlib
import json
import sys
from typing import TYPE_CHECKING

from sporelm.cli import lora, options, sampling, watching
from sporelm.cli.parser import Parser
from sporelm.cli.plain_text import counted
from sporelm.errors import SporeError

if TYPE_CHECKING:
    from sporelm.api import LLM, Completion, SamplingParams

INTERRUPTED = 130  # exit code of a program that SIGINT ended: 128 + 2
MOST_TOGETHER = 16  # answers to a prompt that are computed together; more of them wait
SEPARATOR = "---"  # a line between answers
LONGEST_PROMPT = 64 << 20  # bytes: far beyond what a context holds
LONGEST_TEXT = 1 << 30  # bytes of what is measured on; the tokens of all of it are in memory


def parser() -> Parser:
    made = Parser(
        "run",
        "Complete a prompt. The prompt is raw text: no chat template is applied, BOS is added as the model says. With "
        "--chat-template the prompt is a user message, which the model answers.",
        "[MODEL] (-p TEXT | -f FILE) [options]",
        [
            'spore run -p "Once upon a time" -n 60 --temp 0',
            "spore run model.gguf -f - --json < prompt.txt",
            'spore run -p "Is water wet? Answer: " --choice yes --choice no',
            'spore run -p "Is water wet?" --chat-template default',
        ],
    )
    options.add_model(made)
    prompt = made.add_mutually_exclusive_group(required=True)
    prompt.add_argument("-p", "--prompt", metavar="TEXT", help="the prompt")
    prompt.add_argument("-f", "--file", metavar="FILE", help="read the prompt from a UTF-8 file; - is stdin")
    options.add_chat_template(
        made,
        "answer the prompt as a user message, with this chat template: default (the model's own), chatml, llama3, "
        "mistral-v7, ... or a Jinja file",
    )
    made.add_argument("--json", action="store_true", help="print one JSON object instead of the text")
    options.add_engine(made)
    lora.add_lora(made)
    watching.add_watching(made)
    options.add_help(made)
    sampling.add_sampling(made)
    sampling.add_answers(made)
    return made


def run(args: argparse.Namespace) -> int:
    adapters = lora.adapters(args)
    params = lora.chosen(sampling.sampling_params(args), adapters)
    prompt = args.prompt if args.prompt is not None else read_text(args.file, "the prompt", LONGEST_PROMPT)
    llm = watching.open_model(args, max_batch=min(params.made, MOST_TOGETHER), adapters=adapters)
    try:
        continues = args.chat_template is None
        asked = [{"role": "user", "content": prompt}]
        ids = llm.prompt_ids(prompt) if continues else llm.chat_ids(llm.render(asked))
        if params.made > 1:
            completion = several(llm, ids, params, show=not args.json, continues=continues)
        else:
            completion = complete(llm, ids, params, show=not args.json, continues=continues)
    finally:
        llm.close()
    if completion is None:
        watching.tell(llm)
        return INTERRUPTED
    if args.json:
        print(json.dumps(as_json(completion), ensure_ascii=False))
    else:
        print()
    code = watching.tell(llm)
    if completion.finish_reason == "error":
        raise SporeError(completion.error or "the request failed without a reason")
    if not args.json:
        print(figures(completion), file=sys.stderr)
    return code


def complete(
    llm: "LLM", ids: list[int], params: "SamplingParams", *, show: bool, continues: bool = True
) -> "Completion | None":
    """Return the completion, printing its text as it is generated if `show`; None if Ctrl-C stopped it.

    continues    the prompt is raw text to continue, not a rendered chat to answer
    """
    from sporelm.cli.interrupt import interrupt_flag

    pieces = llm.pieces(llm.answer(ids, params, continues=continues))
    with interrupt_flag() as interrupted, contextlib.closing(pieces) as stream:
        for piece in stream:
            if show:
                sys.stdout.write(piece.text)
                sys.stdout.flush()
            if piece.completion is not None:
                return piece.completion
            if interrupted:
                break
    return None


def several(
    llm: "LLM", ids: list[int], params: "SamplingParams", *, show: bool, continues: bool = True
) -> "Completion | None":
    """The answers to a prompt, their texts on stdout when all are there if `show`; None if Ctrl-C stopped them."""
    try:
        answers = llm.several_answers(ids, params, continues=continues)
        llm.run(answers)
        completion = llm.best_of(answers)
    except KeyboardInterrupt:
        return None
    if show:
        texts = [answer.text for answer in (completion, *completion.alternatives)]
        sys.stdout.write(f"\n{SEPARATOR}\n".join(texts))
        sys.stdout.flush()
    return completion


def read_text(name: str, what: str = "the text", longest: int = LONGEST_TEXT) -> str:
    """The text of a file, or of stdin for '-', which errors call `what`. Raises RequestError, for more than `longest`
    bytes too."""
    from sporelm.weights.text_file import read_text_or_stdin  # imports numpy

    return read_text_or_stdin(name, what, longest)


def as_json(completion: "Completion") -> dict[str, object]:
    """The object of the contract: text, ids, why it ended, and timings in seconds and tokens per second."""
    timings = completion.timings
    found: dict[str, object] = {
        "text": completion.text,
        "token_ids": list(completion.token_ids),
        "prompt_token_ids": list(completion.prompt_token_ids),
        "finish_reason": completion.finish_reason,
        "cached_tokens": completion.cached_tokens,
        "cache_miss": completion.cache_miss,
        "dropped_tokens": completion.dropped_tokens,
        "seed": completion.seed,
        "drafted": completion.drafted,
        "accepted": completion.accepted,
        "timings": {name: getattr(timings, name) for name in TIMINGS},
    }
    if completion.logprobs is not None:
        found["logprobs"] = logprobs_of(completion)
    if completion.alternatives:
        found["alternatives"] = [alternative(each) for each in completion.alternatives]
    return found | error_of(completion)


def alternative(completion: "Completion") -> dict[str, object]:
    """Another answer to the same prompt."""
    found: dict[str, object] = {
        "text": completion.text,
        "token_ids": list(completion.token_ids),
        "finish_reason": completion.finish_reason,
        "seed": completion.seed,
    }
    if completion.logprobs is not None:
        found["logprobs"] = logprobs_of(completion)
    return found | error_of(completion)


def error_of(completion: "Completion") -> dict[str, object]:
    """What went wrong; nothing if all went well."""
    return {"error": completion.error} if completion.error else {}


def logprobs_of(completion: "Completion") -> list[dict[str, object]]:
    """For each token its id and log probability, and those of the likeliest, in falling order."""
    return [
        {"id": token, "logprob": score.logprob, "top": [{"id": i, "logprob": p} for i, p in score.top.items()]}
        for token, score in zip(completion.token_ids, completion.logprobs or (), strict=False)
    ]


TIMINGS = ("load_s", "compile_s", "ttft_s", "prefill_tok_s", "decode_tok_s")


def figures(completion: "Completion") -> str:
    """One line: how many tokens, how fast, why it ended, with which seed."""
    timings = completion.timings
    parts = [
        f"{counted(len(completion.token_ids), 'token')}, {timings.decode_tok_s:.1f} tok/s",
        f"prompt {counted(len(completion.prompt_token_ids), 'token')}, {timings.prefill_tok_s:.1f} tok/s",
        f"first token {timings.ttft_s * 1000:.0f} ms",
        f"load {timings.load_s:.2f} s, compile {timings.compile_s:.2f} s",
        *([f"{completion.accepted} of {completion.drafted} guesses right"] if completion.drafted else []),
        completion.finish_reason,
    ]
    if completion.dropped_tokens:
        parts.append(f"{counted(completion.dropped_tokens, 'token')} left out")
    return " | ".join([*parts, f"seed {completion.seed}"])
