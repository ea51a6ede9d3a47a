"""``python -m hetero_tvm.generate DIR``: continue texts with a language model that was built."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetero_tvm.cli import common as cli_common
from hetero_tvm.cli.parsing import add_output_options, command_parser
from hetero_tvm.errors import UsageError
from hetero_tvm.host.install import extra_command
from hetero_tvm.host.terminal import number_of

if TYPE_CHECKING:
    from hetero_tvm.generation.batch import Request
    from hetero_tvm.generation.chat import ChatTemplate
    from hetero_tvm.generation.model import LanguageModel
    from hetero_tvm.generation.text import TextUntil, Tokenizer


_EXAMPLES = {
    "out --prompt 'The capital of France is'": "continue a text, the likeliest token each time",
    "out --prompt-ids 5,6,7 --max-new-tokens 16 --temperature 0.8 --seed 1": "tokens, drawn at random",
    "out --chat --prompt-file question.txt --stop '###'": "a question from a file, answered up to a text",
    "out --source 'How are you?' --beams 4": "the best of four translations that grow side by side",
}


def main(argv: Sequence[str] | None = None) -> int:
    return cli_common.run(_run, make_parser(), argv)


def make_parser() -> argparse.ArgumentParser:
    text = "Continue texts with what `python -m hetero_tvm.build CHECKPOINT --out DIR` wrote."
    parser = command_parser("generate", text, _EXAMPLES)
    parser.add_argument("model", metavar="DIR", help="folder of the library, or its .so")
    prompts = {"dest": "prompts", "action": "append", "default": []}
    parser.add_argument("--prompt", **prompts, metavar="TEXT", help="may be repeated, as may the next two")
    parser.add_argument(
        "--prompt-file", **prompts, type=Path, metavar="FILE", help="a prompt in a text file; - for stdin"
    )
    parser.add_argument("--prompt-ids", **prompts, type=_ids, metavar="5,6,7", help="a prompt as tokens")
    parser.add_argument(
        "--chat", action="store_true", help="each text is what a user says: the chat template writes it"
    )
    parser.add_argument("--system", metavar="TEXT", help="with --chat: what the model is told before")
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
    parser.add_argument("--repetition-penalty", type=float, help="default: what the checkpoint asks for")
    parser.add_argument("--beams", type=cli_common.positive, metavar="N", help="beam search; the best text")
    parser.add_argument(
        "--length-penalty",
        type=float,
        default=1.0,
        metavar="X",
        help="of --beams: above 0 favours long texts",
    )
    parser.add_argument("--seed", type=cli_common.count, help="of the random numbers")
    parser.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="ends a text before it; may be repeated"
    )
    grammar = parser.add_mutually_exclusive_group()
    grammar.add_argument(
        "--json-schema", type=Path, metavar="FILE", help="texts are JSON that it describes; - for stdin"
    )
    grammar.add_argument("--regex", metavar="EXPRESSION", help="texts match a regular expression")
    parser.add_argument("--stop-ids", type=_ids, metavar="1,2", help="default: those of the checkpoint")
    parser.add_argument("--ignore-stop", action="store_true", help="generate all --max-new-tokens")
    parser.add_argument(
        "--logprobs",
        type=cli_common.count,
        metavar="N",
        help="with --json: log-probabilities of the tokens, and of the N likeliest beside each",
    )
    parser.add_argument(
        "--draft",
        metavar="DIR",
        help="a small model of the same tokenizer that guesses: the same texts, faster",
    )
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


def _text_of(file: Path, option: str = "--prompt-file") -> str:
    """Text of a file, or of stdin for ``-``, without the newline that ends its last line."""
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}", hint=f"give {option} a text") from None
    except ValueError as error:
        raise UsageError(f"{file} is no text in UTF-8: {error}", hint=f"give {option} a text") from None
    return text.removesuffix("\n")


def _run(options: argparse.Namespace) -> int:
    from hetero_tvm.generation.chat import ChatTemplate
    from hetero_tvm.generation.model import load_language_model
    from hetero_tvm.generation.text import Tokenizer

    about = bool(options.source or options.source_ids or options.features or options.audio)
    if not options.prompts and not about:
        raise UsageError(
            "there is no prompt", hint="give --prompt TEXT, --prompt-file FILE or --prompt-ids 5,6,7"
        )
    options.prompts = [_text_of(one) if isinstance(one, Path) else one for one in options.prompts]
    _check(options, about)
    model = load_language_model(options.model, threads=options.threads, cache_tokens=options.cache_tokens)
    folder = model.library.path.parent
    words = options.source or options.stop or any(isinstance(prompt, str) for prompt in options.prompts)
    tokenizer = Tokenizer(folder) if words else _words_if_any(folder, options)
    requests = _requests(model, tokenizer, ChatTemplate(folder) if options.chat else None, options)
    if options.json_schema or options.regex is not None:
        _constrain(model, Tokenizer(folder), requests, options)
    texts = [_follow(request, tokenizer, options, len(requests) == 1) for request in requests]
    if options.beams:
        _search(model, requests, options)
    elif options.draft:
        _speculate(model, requests, options)
    else:
        _continue(model, requests)
    _tell(requests, texts, tokenizer, options)
    for request in requests:
        if request.error is not None:
            raise request.error
    return 0


def _words_if_any(folder: Path, options: argparse.Namespace) -> Tokenizer | None:
    """The tokenizer of a library, where it has one; tokens that were given need no package for words."""
    from hetero_tvm.generation.text import FILE, Tokenizer

    if not (folder / FILE).is_file():
        return None
    if importlib.util.find_spec("tokenizers") is None:
        if not options.quiet:
            hint = extra_command("generate")
            print(
                f"note: tokens only, no words: the package tokenizers is not installed ({hint})",
                file=sys.stderr,
            )
        return None
    return Tokenizer(folder)


def _check(options: argparse.Namespace, about: bool) -> None:
    """Raise :class:`UsageError` for options that do not go together; lists all."""
    problems = []
    if options.beams and (options.temperature or options.top_k or options.top_p < 1 or options.min_p):
        problems.append(
            "--beams takes the likeliest texts, and draws none: leave out --temperature, --top-k, "
            "--top-p and --min-p"
        )
    if options.beams and (options.stop or options.logprobs is not None):
        problems.append("--beams has neither --stop nor --logprobs")
    if (options.json_schema or options.regex is not None) and (options.beams or options.draft):
        problems.append("--json-schema and --regex go with neither --beams nor --draft")
    if options.draft and (options.beams or about or options.logprobs is not None):
        problems.append("--draft has neither --beams nor --logprobs, and takes decoders only")
    if options.logprobs is not None and not options.json:
        problems.append("--logprobs is told with --json")
    if options.system is not None and not options.chat:
        problems.append("--system needs --chat: it is the chat template that writes it")
    if options.chat and any(not isinstance(prompt, str) for prompt in options.prompts):
        problems.append("--chat takes texts: a prompt as tokens is what the template has written already")
    if problems:
        raise UsageError("options that do not go together", problems=problems)


def _requests(
    model: LanguageModel,
    tokenizer: Tokenizer | None,
    template: ChatTemplate | None,
    options: argparse.Namespace,
) -> list[Request]:
    """Texts that are asked for, in the order of the command line."""
    from hetero_tvm.generation.batch import Request
    from hetero_tvm.generation.sampling import Sampling

    sampling = Sampling(
        options.repetition_penalty,
        options.temperature,
        options.top_k,
        options.top_p,
        options.min_p,
        options.seed,
    )
    prompts = [
        _tokens(tokenizer, prompt, template, options.system) if isinstance(prompt, str) else prompt
        for prompt in options.prompts
    ]
    sources: list[Any] = [*options.source_ids, *(tokenizer.encode(t) for t in options.source)]
    sources += [_features(Path(name)) for name in options.features]
    sources += [_sound(model, name) for name in options.audio]
    if sources and len(prompts) not in (0, 1, len(sources)):
        raise UsageError(f"there are {len(prompts)} prompts and {len(sources)} sources")
    if sources:
        prompts = prompts * len(sources) if len(prompts) == 1 else prompts or [()] * len(sources)
    stop = frozenset(() if options.ignore_stop else options.stop_ids or model.facts.stop)
    return [
        Request(
            prompt,
            options.max_new_tokens,
            sampling.for_text(number),
            stop,
            source=source,
            logprobs=options.logprobs,
        )
        for number, (prompt, source) in enumerate(zip(prompts, sources or [None] * len(prompts), strict=True))
    ]


def _constrain(
    model: LanguageModel, tokenizer: Tokenizer, requests: Sequence[Request], options: argparse.Namespace
) -> None:
    """Give each text its grammar."""
    from hetero_tvm.generation.grammar import Grammar, Grammars

    if options.json_schema:
        grammar = Grammar("json", _text_of(options.json_schema, "--json-schema"))
    else:
        grammar = Grammar("regex", options.regex)
    grammars = Grammars(tokenizer, model.facts.vocab, model.facts.stop)
    for request in requests:
        request.grammar = grammars.begin(grammar)


def _follow(
    request: Request, tokenizer: Tokenizer | None, options: argparse.Namespace, single: bool
) -> TextUntil | None:
    """The text of a request as it comes, which a single one prints; None where there are no words."""
    from hetero_tvm.generation.text import TextUntil

    if tokenizer is None:
        return None
    text = TextUntil(tokenizer, options.stop)

    def add(token: int) -> None:
        piece = text.add(token)
        if single and not options.json:
            print(piece, end="", flush=True)
        if text.stopped:
            request.cancel()

    request.on_token = add
    return text


def _continue(model: LanguageModel, requests: Sequence[Request]) -> None:
    """Continue all texts together."""
    from hetero_tvm.generation.batch import Batch

    batch = Batch(model)
    for request in requests:
        batch.submit(request)
    batch.run()


def _speculate(model: LanguageModel, requests: Sequence[Request], options: argparse.Namespace) -> None:
    """One text after the other, with tokens that a small model guesses."""
    from hetero_tvm.generation.model import load_language_model
    from hetero_tvm.generation.speculative import speculate

    draft = load_language_model(options.draft, threads=options.threads, cache_tokens=options.cache_tokens)
    for request in requests:
        started = time.perf_counter()
        tokens = speculate(
            model,
            draft,
            request.prompt,
            max_new_tokens=request.max_new_tokens,
            sampling=request.sampling,
            stop=request.stop,
        )
        for token in tokens:
            if not request.tokens:
                request.prefill_s = time.perf_counter() - started
            request.add(token)
            if request.reason is not None:
                break
        tokens.close()
        request.decode_s = time.perf_counter() - started - request.prefill_s
        if request.reason is None:
            request.reason = "stop" if request.tokens[-1] in request.stop else "length"


def _search(model: LanguageModel, requests: Sequence[Request], options: argparse.Namespace) -> None:
    """The best text of a beam search for each request."""
    from hetero_tvm.generation.beams import BeamSearch, search_beams

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
            request.add(token)


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


def _tokens(tokenizer: Tokenizer, text: str, template: ChatTemplate | None, system: str | None) -> list[int]:
    """Tokens of a text, or of what a user says to the model."""
    if template is None:
        return tokenizer.encode(text)
    messages = [{"role": "system", "content": system}] if system is not None else []
    # The template writes the special tokens itself.
    return tokenizer.encode(template.prompt([*messages, {"role": "user", "content": text}]), special=False)


def _tell(
    requests: Sequence[Request],
    texts: Sequence[TextUntil | None],
    tokenizer: Tokenizer | None,
    options: argparse.Namespace,
) -> None:
    """Print what came: one text as it comes, several line by line, or all as a document."""
    rests = [text.finish() if text else "" for text in texts]
    for request, text in zip(requests, texts, strict=True):
        if text and text.stopped and request.error is None:
            request.reason = "stop"
    if options.json:
        cli_common.print_json(_document(requests, texts, tokenizer))
        return
    for request, text, rest in zip(requests, texts, rests, strict=True):
        whole = text.text if text else ",".join(map(str, request.tokens))
        print(rest if text and len(texts) == 1 else whole)
    _say_speed(options, requests)


def _document(
    requests: Sequence[Request], texts: Sequence[TextUntil | None], tokenizer: Tokenizer | None
) -> dict[str, Any]:
    """One text as it is, several as lists; times are those of the longest."""
    rows = [
        {"tokens": r.tokens, "reason": r.reason, "prompt_tokens": len(r.prompt)}
        | ({"text": text.text} if text else {})
        | ({"logprobs": _scores(r, tokenizer)} if r.logprobs is not None else {})
        for r, text in zip(requests, texts, strict=True)
    ]
    merged = rows[0] if len(rows) == 1 else {name: [row[name] for row in rows] for name in rows[0]}
    times = {name: max(getattr(r, name) for r in requests) for name in ("prefill_s", "decode_s")}
    return {**merged, **times}


def _scores(request: Request, tokenizer: Tokenizer | None) -> list[dict[str, Any]]:
    """An object for each token of a text: its log-probability, and the likeliest in its place."""
    from hetero_tvm.generation.likelihood import in_json

    def entry(token: int, logprob: float | None) -> dict[str, Any]:
        piece = {"text": tokenizer.piece(token).decode(errors="replace")} if tokenizer else {}
        return {"token": token, **piece, "logprob": in_json(logprob)}

    return [
        {**entry(one.token, one.logprob), "top": [entry(*other) for other in one.top]}
        for one in request.likelihoods
    ]


def _say_speed(options: argparse.Namespace, requests: Sequence[Request]) -> None:
    if options.quiet:
        return
    read = sum(len(r.prompt) for r in requests)
    made = sum(len(r.tokens) for r in requests)
    prefill, decode = (max(getattr(r, name) for r in requests) for name in ("prefill_s", "decode_s"))
    text = f"prompt: {number_of(read, 'token')} in {prefill:.3f} s; {number_of(made, 'new token')}"
    if decode and made > len(requests):
        text += f", {(made - len(requests)) / decode:.1f} per second"
    print(text, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
