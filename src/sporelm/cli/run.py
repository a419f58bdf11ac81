"""`spore run`: complete a prompt. The text is streamed to stdout, the statistics go to stderr."""

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sporelm.cli import image_options, lora_options, options, sampling_options, trace_options
from sporelm.cli.parser import Parser
from sporelm.cli.terminal_text import pluralize
from sporelm.errors import SporeError

if TYPE_CHECKING:
    from sporelm.api import LLM, Completion, SamplingParams
    from sporelm.cli.image_options import Picture

INTERRUPTED = 130  # exit code after SIGINT: 128 + 2
MAX_BATCH = 16  # answers to a prompt that are generated in one batch; more of them wait
SEPARATOR = "---"  # a line between answers


def make_parser() -> Parser:
    parser = Parser(
        "run",
        "Complete a prompt. The prompt is raw text: no chat template is applied, and BOS is added if the model expects "
        "it. With --chat-template the prompt is a user message, which the model answers.",
        "[MODEL] (-p TEXT | -f FILE) [options]",
        [
            'spore run -p "Once upon a time" -n 60 --temp 0',
            "spore run model.gguf -f - --json < prompt.txt",
            'spore run -p "Is water wet? Answer: " --choice yes --choice no',
            'spore run -p "Is water wet?" --chat-template default',
            'spore run model.gguf -p "Once" --backend torch --device cuda --device-memory 20G',
            'spore run model.gguf -p "Once" --tp 3 --tp-shares 1,1,2',
            'spore run model.gguf --mmproj mmproj.gguf --image cat.png -p "What is it?" --chat-template default',
        ],
    )
    options.add_model(parser)
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("-p", "--prompt", metavar="TEXT", help="the prompt")
    prompt.add_argument("-f", "--file", metavar="FILE", help="read the prompt from a UTF-8 file; - is stdin")
    options.add_chat_template(
        parser,
        "answer the prompt as a user message, with this chat template: default (the model's own), chatml, llama3, "
        "mistral-v7, ... or a Jinja file",
    )
    image_options.add_mmproj(parser)
    image_options.add_images(
        parser,
        "a picture: PNG, JPEG, WebP, GIF or BMP. It stands at the model's placeholder in the raw text, or in front of "
        "a text that has none; may be repeated",
    )
    options.add_json(parser, "print one JSON object instead of the text")
    options.add_engine(parser)
    lora_options.add_lora(parser)
    trace_options.add_trace_and_record(parser)
    options.add_help(parser)
    sampling_options.add_sampling(parser)
    sampling_options.add_answers(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    adapters = lora_options.parse_lora(args)
    params = lora_options.with_first_adapter(sampling_options.parse_sampling(args), adapters)
    prompt = (
        args.prompt if args.prompt is not None else options.read_text(args.file, "the prompt", options.MAX_PROMPT_BYTES)
    )
    pictures = image_options.read_pictures(args.images)
    llm = trace_options.open_traced_model(args, max_batch=min(params.num_sequences, MAX_BATCH), adapters=adapters)
    try:
        continues = args.chat_template is None
        pictures = [image_options.check_picture(llm, picture) for picture in pictures]
        if not continues:
            ids = llm.chat_ids(llm.render(image_options.image_messages(prompt, pictures)))
        else:
            ids = llm.prompt_with_images(prompt, [picture.data for picture in pictures])
        generate = generate_several if params.num_sequences > 1 else generate_one
        completion = generate(llm, ids, params, show=not args.json, continues=continues)
        vision = vision_as_json(llm, pictures)
    finally:
        llm.close()
    if completion is None:
        trace_options.report(llm)
        return INTERRUPTED
    if args.json:
        print(json.dumps(as_json(completion) | vision, ensure_ascii=False))
    else:
        print()
    code = trace_options.report(llm)
    if completion.finish_reason == "error":
        raise SporeError(completion.error or "the request failed without a reason")
    if not args.json:
        print(format_stats(completion), file=sys.stderr)
    return code


def generate_one(
    llm: "LLM", ids: list[int], params: "SamplingParams", *, show: bool, continues: bool = True
) -> "Completion | None":
    """Return the completion, streaming its text to stdout if `show`; None if Ctrl-C stopped it.

    continues    the prompt is raw text to continue, not a rendered chat to answer
    """
    from sporelm.cli.interrupt import interrupt_flag

    pieces = llm.stream_pieces(llm.prepare_generation(ids, params, continues=continues))
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


def generate_several(
    llm: "LLM", ids: list[int], params: "SamplingParams", *, show: bool, continues: bool = True
) -> "Completion | None":
    """Return all answers to a prompt, printing their texts at the end if `show`; None if Ctrl-C stopped them."""
    try:
        generations = llm.prepare_generations(ids, params, continues=continues)
        llm.run_generations(generations)
        completion = llm.merge_completions(generations)
    except KeyboardInterrupt:
        return None
    if show:
        texts = [answer.text for answer in (completion, *completion.alternatives)]
        sys.stdout.write(f"\n{SEPARATOR}\n".join(texts))
        sys.stdout.flush()
    return completion


def as_json(completion: "Completion") -> dict[str, object]:
    """Return the JSON object of a completion: text, ids, finish reason, timings in seconds and tokens per second."""
    timings = completion.timings
    result: dict[str, object] = {
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
        result["logprobs"] = logprobs_as_json(completion)
    if completion.alternatives:
        result["alternatives"] = [alternative_as_json(each) for each in completion.alternatives]
    return result | error_as_json(completion)


def vision_as_json(llm: "LLM", pictures: "Sequence[Picture]") -> dict[str, object]:
    """Return the pictures of a prompt with the image rows that they take, and the seconds of the vision tower; nothing
    without pictures."""
    if not pictures:
        return {}
    encoder = llm.engine.image_encoder
    assert encoder is not None
    images = [{"file": picture.name, "frames": picture.frames, "rows": picture.rows} for picture in pictures]
    return {"images": images, "tower_s": encoder.seconds}


def alternative_as_json(completion: "Completion") -> dict[str, object]:
    """Return the JSON object of another completion of the same prompt."""
    result: dict[str, object] = {
        "text": completion.text,
        "token_ids": list(completion.token_ids),
        "finish_reason": completion.finish_reason,
        "seed": completion.seed,
    }
    if completion.logprobs is not None:
        result["logprobs"] = logprobs_as_json(completion)
    return result | error_as_json(completion)


def error_as_json(completion: "Completion") -> dict[str, object]:
    """Return the error, if any."""
    return {"error": completion.error} if completion.error else {}


def logprobs_as_json(completion: "Completion") -> list[dict[str, object]]:
    """Return for each token its id and log probability, and those of the most likely tokens, in descending order."""
    return [
        {"id": token, "logprob": score.logprob, "top": [{"id": i, "logprob": p} for i, p in score.top.items()]}
        for token, score in zip(completion.token_ids, completion.logprobs or (), strict=False)
    ]


TIMINGS = ("load_s", "compile_s", "ttft_s", "prefill_tok_s", "decode_tok_s")


def format_stats(completion: "Completion") -> str:
    """Return one line: number of tokens, speed, finish reason, seed."""
    timings = completion.timings
    parts = [
        f"{pluralize(len(completion.token_ids), 'token')}, {timings.decode_tok_s:.1f} tok/s",
        f"prompt {pluralize(len(completion.prompt_token_ids), 'token')}, {timings.prefill_tok_s:.1f} tok/s",
        f"first token {timings.ttft_s * 1000:.0f} ms",
        f"load {timings.load_s:.2f} s, compile {timings.compile_s:.2f} s",
        *([f"{completion.accepted} of {completion.drafted} drafts accepted"] if completion.drafted else []),
        completion.finish_reason,
    ]
    if completion.dropped_tokens:
        parts.append(f"{pluralize(completion.dropped_tokens, 'token')} dropped")
    return " | ".join([*parts, f"seed {completion.seed}"])
