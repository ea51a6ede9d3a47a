"""``python -m hetero_tvm.generate DIR``: continue texts with a language model that was built."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetero_tvm.cli import common as cli_common
from hetero_tvm.cli.parsing import add_output_options, command_parser
from hetero_tvm.errors import UsageError

if TYPE_CHECKING:
    from hetero_tvm.generation.batch import Request
    from hetero_tvm.generation.chat import ChatTemplate
    from hetero_tvm.generation.model import LanguageModel
    from hetero_tvm.generation.text import Tokenizer


_EXAMPLES = {
    "out --prompt 'The capital of France is'": "continue a text, the likeliest token each time",
    "out --prompt-ids 5,6,7 --max-new-tokens 16 --temperature 0.8 --seed 1": "tokens, drawn at random",
    "out --source 'How are you?' --beams 4": "the best of four translations that grow side by side",
}


def main(argv: Sequence[str] | None = None) -> int:
    return cli_common.run(_run, make_parser(), argv)


def make_parser() -> argparse.ArgumentParser:
    text = "Continue texts with what `python -m hetero_tvm.build CHECKPOINT --out DIR` wrote."
    parser = command_parser("generate", text, _EXAMPLES)
    parser.add_argument("model", metavar="DIR", help="folder of the library, or its .so")
    parser.add_argument("--prompt", action="append", default=[], metavar="TEXT", help="may be repeated")
    parser.add_argument(
        "--chat", action="store_true", help="each --prompt is what a user says: the chat template writes it"
    )
    parser.add_argument(
        "--prompt-ids",
        action="append",
        default=[],
        type=_ids,
        metavar="5,6,7",
        help="a prompt as tokens; may be repeated",
    )
    source = parser.add_argument_group("encoder-decoders (speech, translation, summaries)")
    source.add_argument(
        "--source", action="append", default=[], metavar="TEXT", help="text to translate; may be repeated"
    )
    source.add_argument(
        "--source-ids", action="append", default=[], type=_ids, metavar="5,6,7", help="the same as tokens"
    )
    source.add_argument(
        "--features",
        action="append",
        default=[],
        metavar="FILE.npy",
        help="features of audio, float32 [channels, frames]; may be repeated",
    )
    source.add_argument(
        "--audio", action="append", default=[], metavar="FILE.wav", help="speech at 16 kHz; may be repeated"
    )
    parser.add_argument("--max-new-tokens", type=cli_common.positive, default=128, metavar="N")
    parser.add_argument("--temperature", type=float, default=0.0, help="default: 0, the likeliest token")
    parser.add_argument("--top-k", type=cli_common.count, default=0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--min-p", type=float, default=0.0)
    parser.add_argument("--repetition-penalty", type=float, default=1.0)
    parser.add_argument("--beams", type=cli_common.positive, metavar="N", help="beam search; the best text")
    parser.add_argument(
        "--length-penalty",
        type=float,
        default=1.0,
        metavar="X",
        help="of --beams: above 0 favours long texts",
    )
    parser.add_argument("--seed", type=cli_common.count, help="of the random numbers")
    parser.add_argument("--stop-ids", type=_ids, metavar="1,2", help="default: those of the checkpoint")
    parser.add_argument("--ignore-stop", action="store_true", help="generate all --max-new-tokens")
    parser.add_argument("--threads", type=cli_common.positive)
    parser.add_argument(
        "--cache-tokens", type=cli_common.positive, metavar="N", help="tokens that all texts hold together"
    )
    add_output_options(parser)
    return parser


def _ids(text: str) -> list[int]:
    """``5,6,7`` -> [5, 6, 7]; an argparse type."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of tokens such as 5,6,7") from None


def _run(options: argparse.Namespace) -> int:
    from hetero_tvm.generation.batch import Batch, Request
    from hetero_tvm.generation.chat import ChatTemplate
    from hetero_tvm.generation.model import load_language_model
    from hetero_tvm.generation.sampling import Sampling
    from hetero_tvm.generation.text import FILE, Tokenizer, Words

    about = bool(options.source or options.source_ids or options.features or options.audio)
    if not options.prompt and not options.prompt_ids and not about:
        raise UsageError("there is no prompt", hint="give --prompt TEXT or --prompt-ids 5,6,7")
    sampling = Sampling(
        options.repetition_penalty,
        options.temperature,
        options.top_k,
        options.top_p,
        options.min_p,
        options.seed,
    )
    model = load_language_model(options.model, threads=options.threads, cache_tokens=options.cache_tokens)
    tokenizer = None
    if options.prompt or options.source or (model.library.path.parent / FILE).is_file():
        tokenizer = Tokenizer(model.library.path.parent)
    template = ChatTemplate(model.library.path.parent) if options.chat else None
    prompts = [*options.prompt_ids, *(_tokens(tokenizer, text, template) for text in options.prompt)]
    sources: list[Any] = [*options.source_ids, *(tokenizer.encode(t) for t in options.source)]
    sources += [_features(Path(name)) for name in options.features]
    sources += [_sound(model, name) for name in options.audio]
    if sources and len(prompts) not in (0, 1, len(sources)):
        raise UsageError(f"there are {len(prompts)} prompts and {len(sources)} sources")
    if sources:
        prompts = prompts * len(sources) if len(prompts) == 1 else prompts or [()] * len(sources)
    stop = () if options.ignore_stop else options.stop_ids or model.facts.stop
    words = Words(tokenizer) if tokenizer and len(prompts) == 1 and not options.json else None

    def show(token: int) -> None:
        if words is not None:
            print(words.add(token), end="", flush=True)

    batch = Batch(model)
    requests = [
        Request(prompt, options.max_new_tokens, sampling, frozenset(stop), show, source=source)
        for prompt, source in zip(prompts, sources or [None] * len(prompts), strict=True)
    ]
    if options.beams:
        _search(model, requests, options)
    else:
        for request in requests:
            batch.submit(request)
        batch.run()
    if options.json:
        cli_common.print_json(_document(requests, tokenizer))
    else:
        if words is not None:
            print(words.finish())
        else:
            for request in requests:
                print(tokenizer.decode(request.tokens) if tokenizer else ",".join(map(str, request.tokens)))
        _say_speed(options, requests)
    for request in requests:
        if request.error is not None:
            raise request.error
    return 0


def _search(model: LanguageModel, requests: Sequence[Request], options: argparse.Namespace) -> None:
    """The best text of a beam search for each request."""
    from hetero_tvm.generation.beams import BeamSearch, search_beams

    if options.temperature or options.top_k or options.top_p < 1 or options.min_p:
        raise UsageError(
            "--beams takes the likeliest texts, and draws none",
            hint="leave out --temperature, --top-k, --top-p and --min-p",
        )
    search = BeamSearch(options.beams, options.length_penalty, repetition_penalty=options.repetition_penalty)
    for request in requests:
        started = time.perf_counter()
        [best, *_] = search_beams(
            model,
            request.prompt,
            search=search,
            max_new_tokens=request.max_new_tokens,
            stop=request.stop,
            source=request.source,
        )
        request.reason, request.decode_s = best.reason, time.perf_counter() - started
        for token in best.tokens:
            request.tokens.append(token)
            if request.on_token is not None:
                request.on_token(token)


def _features(path: Path) -> Any:
    """An array of a file."""
    import numpy as np

    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UsageError(f"cannot read {path}: {error}", hint="write it with numpy.save") from None


def _sound(model: LanguageModel, name: str) -> Any:
    """Features of a file with speech."""
    from hetero_tvm.generation.audio import log_mel, read_wave

    if model.sources is None or not model.sources.facts.mels:
        raise UsageError(f"a {model.facts.architecture} model does not take audio")
    facts = model.sources.facts
    return log_mel(read_wave(name), facts.mels, 2 * facts.longest)


def _tokens(tokenizer: Tokenizer, text: str, template: ChatTemplate | None) -> list[int]:
    """Tokens of a text, or of what a user says to the model."""
    if template is None:
        return tokenizer.encode(text)
    # The template writes the special tokens itself.
    return tokenizer.encode(template.prompt([{"role": "user", "content": text}]), special=False)


def _document(requests: Sequence[Request], tokenizer: Tokenizer | None) -> dict[str, Any]:
    """One text as it is, several as lists; times are those of the longest."""
    rows = [
        {"tokens": r.tokens, "reason": r.reason, "prompt_tokens": len(r.prompt)}
        | ({"text": tokenizer.decode(r.tokens)} if tokenizer else {})
        for r in requests
    ]
    merged = rows[0] if len(rows) == 1 else {name: [row[name] for row in rows] for name in rows[0]}
    times = {name: max(getattr(r, name) for r in requests) for name in ("prefill_s", "decode_s")}
    return {**merged, **times}


def _say_speed(options: argparse.Namespace, requests: Sequence[Request]) -> None:
    if options.quiet:
        return
    read = sum(len(r.prompt) for r in requests)
    made = sum(len(r.tokens) for r in requests)
    prefill, decode = (max(getattr(r, name) for r in requests) for name in ("prefill_s", "decode_s"))
    text = f"prompt: {read} tokens in {prefill:.3f} s; {made} new tokens"
    if decode and made > len(requests):
        text += f", {(made - len(requests)) / decode:.1f} per second"
    print(text, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
