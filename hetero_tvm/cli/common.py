"""Shared parts of the command lines: options, error reporting, JSON output."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetero_tvm.cli import names
from hetero_tvm.cli.ending import ended_by_signals
from hetero_tvm.cli.failures import DEBUG_VARIABLE, in_words
from hetero_tvm.cli.numbers import cosine, count, minutes, percent, positive, seconds  # noqa: F401
from hetero_tvm.cli.parsing import EXITS, Refusal, add_output_options, command_parser, named
from hetero_tvm.cli.streams import is_of_output, with_streams
from hetero_tvm.errors import (
    AccuracyError,
    BuildError,
    HeteroTVMError,
    NativeBuildError,
    TuningError,
    UsageError,
    unknown_name,
)
from hetero_tvm.host.install import as_typed
from hetero_tvm.host.tables import paragraphs
from hetero_tvm.host.terminal import console, number_of
from hetero_tvm.targets.precisions import PRECISIONS, canonical_precision

if TYPE_CHECKING:  # a command line that is wrong is told before the compiler is imported
    from hetero_tvm.api import BuiltModel, OptimizedModel
    from hetero_tvm.frontend.given_lengths import GivenLengths
    from hetero_tvm.frontend.signature import ImportedModel, Span
    from hetero_tvm.targets.base import Target

DEFAULT_MODEL = "zoo:minilm-l6"
_LONGEST_NAME = 200
"""Bytes of a file's name, which leave room for the ends of what lies beside it (file systems take 255)."""
_FAILURES = (TuningError, BuildError, NativeBuildError, AccuracyError)


def shape(text: str) -> tuple[str, tuple[int | str | Span, ...]]:
    """``NAME=1x128`` or ``NAME=[1,128]`` -> (NAME, (1, 128)), a range as a Span; an argparse type."""
    from hetero_tvm.frontend.signature import parse_shape_option

    try:
        return parse_shape_option(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(f"{error.message} {error.hint}") from None


def lengths(text: str) -> GivenLengths:
    """``16:0.2,128:0.8`` -> weights by length; an argparse type."""
    from hetero_tvm.frontend.given_lengths import parse_lengths

    try:
        return parse_lengths(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(f"{error.message} ({error.hint})") from None


def value(text: str) -> tuple[str, Any]:
    """``NAME=16000`` or ``NAME=[1,2]`` -> (NAME, the number or list); an argparse type."""
    name, _, written = text.rpartition("=")
    try:
        found = json.loads(written)
        fits = name and isinstance(found, int | float | list)
    except ValueError:
        fits = False
    if not fits:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=NUMBER, as in rate=16000 or sizes=[1,2]")
    return name, found


def precision(text: str) -> str:
    """The short name of a precision, where ``text`` is another spelling of one; an argparse type.

    What is none stays as it is: :func:`check_options` refuses it together with all else that is wrong.
    """
    try:
        return canonical_precision(text)
    except UsageError:
        return text


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address or a name."""
    import ipaddress
    import socket

    try:
        return all(ipaddress.ip_address(found[4][0]).is_loopback for found in socket.getaddrinfo(host, None))
    except (OSError, ValueError):
        return False


def parser(
    command: str,
    description: str,
    examples: Mapping[str, str] | None = None,
    exits: Mapping[int, str] = EXITS,
    out: str = "out",
) -> argparse.ArgumentParser:
    """A parser with the options that tune and build share; ``examples`` as for :func:`command_parser`.

    ``out`` is where the command writes by default: not over what another command has made.
    """
    result = model_parser(command, description, examples, exits)
    result.add_argument(
        "-o",
        "--out",
        type=lambda text: Path(named(text)),
        default=Path(out),
        metavar="DIR",
        help=f"folder or .so to write (default: ./{out})",
    )
    result.add_argument(
        "--inputs",
        type=Path,
        metavar="FILE.npz",
        help="arrays by input name: they fix shapes, and outputs are compared for them (default: sampled)",
    )
    result.add_argument("--no-check", action="store_true", help="do not compare outputs with a reference")
    return result


def add_lengths(result: argparse.ArgumentParser) -> None:
    """Add ``--lengths``, for commands that choose kernels of a model with open dimensions."""
    result.add_argument(
        "--lengths",
        type=lengths,
        metavar="N:WEIGHT,...",
        help="of a range of lengths, those that kernels are tuned and chosen for, as in 16:0.2,128:0.8; with "
        "several open dimensions batch=1/sequence=16:0.2,... (default: what there are records of)",
    )


def model_parser(
    command: str,
    description: str,
    examples: Mapping[str, str] | None = None,
    exits: Mapping[int, str] = EXITS,
) -> argparse.ArgumentParser:
    """A parser with the options of every command that optimizes a model."""
    result = command_parser(command, description, examples or {"zoo:bert-base": "a model of the zoo"}, exits)
    result.add_argument(
        "model",
        type=named,
        nargs="?",
        default=DEFAULT_MODEL,
        metavar="MODEL",
        help=f"a file (ONNX, .pt2, .tflite, StableHLO), or zoo:NAME (default: {DEFAULT_MODEL})",
    )
    result.add_argument(
        "--trust", action="store_true", help="let a .pt2 file run code while it is read (default: refused)"
    )
    result.add_argument("--target", default="cpu", metavar="TARGET", help=names.TARGET_HELP)
    result.add_argument(
        "--shape",
        type=shape,
        action="append",
        default=[],
        metavar="NAME=1x128",
        help="shape of an input (also NAME=[1,128]); may be repeated; 1x8..256 is a range of lengths for one "
        "library (? leaves the range open), 64..512:8 has the multiples of 8, [batch,past+sequence] a sum; "
        "past=0..512 is for every dimension that the model calls past",
    )
    result.add_argument(
        "--value",
        type=value,
        action="append",
        default=[],
        metavar="NAME=NUMBER",
        help="value of an input of an ONNX file that never changes (also NAME=[1,2]): it becomes a constant, "
        "and the library has no such input; may be repeated",
    )
    result.add_argument(
        "--batch", type=positive, metavar="N", help="batch size, where the model leaves it open"
    )
    result.add_argument(
        "--sequence", type=positive, metavar="N", help="sequence length, where the model leaves it open"
    )
    result.add_argument("--precision", type=precision, metavar="NAME", help=names.PRECISION_HELP)
    result.add_argument("--logs", type=Path, metavar="DIR", help="records (default: a user data folder)")
    result.add_argument("--no-shipped-records", action="store_true", help="ignore records of the package")
    result.add_argument("--disable", action="append", default=[], metavar="FUSION", help=names.DISABLE_HELP)
    add_output_options(result)
    return result


def check_options(options: argparse.Namespace) -> None:
    """Refuse what parses but cannot be served.  :class:`UsageError` names all such options."""
    problems, hint = [], None
    precision = getattr(options, "precision", None)
    if precision is not None and precision not in PRECISIONS:
        problems.append(f"--precision {precision} is unknown")
        hint = f"{unknown_name('', precision, PRECISIONS)[1]}; without --precision, the target's own"
    for option in ("shape", "value"):
        given = [name for name, _ in getattr(options, option, ())]
        twice = [name for name in dict.fromkeys(given) if given.count(name) > 1]
        problems += [f"--{option} gives {name} twice" for name in twice]
    if problems and getattr(options, "target", None) is not None:
        # Alone, a target that cannot be is told by whoever uses it first.
        try:
            load_target(options.target, None)
        except HeteroTVMError as error:
            problems += error.problems or [error.message]
            hint = "; ".join(filter(None, [hint, error.hint]))
    if len(problems) == 1:
        raise UsageError(problems[0], hint=hint)
    if problems:
        raise UsageError("these options cannot be", problems=problems, hint=hint)


def load_target(name: str, precision: str | None) -> Target:
    """The target of that name, at a precision (None: its own).

    Raises :class:`TargetError` or :class:`UsageError`.
    """
    from hetero_tvm.targets.registry import parse_target

    target = parse_target(name)
    return target if precision is None else target.with_precision(precision)


def load_model(
    options: argparse.Namespace, model: ImportedModel | None = None
) -> tuple[ImportedModel, Target]:
    """Import the model that the options name (unless it is given); refuse first what cannot end well."""
    from hetero_tvm import api
    from hetero_tvm.compile.dynamic.signature import input_signature
    from hetero_tvm.reference.given import checked_inputs, read_inputs

    # First: a model may take long to read, and a search longer.
    if getattr(options, "out", None) is not None and not getattr(options, "dry_run", False):
        check_out(options.out)
    target = load_target(options.target, options.precision)
    for line in target.findings():
        say(options, line)
    given = None if getattr(options, "inputs", None) is None else read_inputs(options.inputs)
    if model is None:
        shapes = {name: array.shape for name, array in (given or {}).items() if array.size}
        model = api.import_model(
            options.model,
            shapes={**shapes, **dict(options.shape)},
            batch=options.batch,
            sequence=options.sequence,
            values=dict(options.value),
            trust=options.trust,
        )
    if model.open is not None:
        say(options, f"one library for {', '.join(map(str, model.open.symbols))}")
    if given is not None:  # refused before anything takes long
        checked_inputs(input_signature(model), given)
    return model, target


def tell_missing_logs(options: argparse.Namespace) -> None:
    """Warn of a folder of records that is not there, where a command only reads them."""
    if options.logs is not None and not options.logs.is_dir():
        warnings.warn(f"--logs {options.logs}: there is no such folder, so no records of it", stacklevel=2)


def load_optimized(options: argparse.Namespace, model: ImportedModel | None = None) -> OptimizedModel:
    """Import the model that the options name (unless it is given), and optimize it for their target."""
    from hetero_tvm import api

    model, _ = load_model(options, model)
    return api.optimize_model(
        model,
        target=options.target,
        disable=options.disable,
        dump_ir=getattr(options, "dump_ir", None),
        precision=options.precision,
        lengths=getattr(options, "lengths", None),
    )


def check_out(path: Path) -> None:
    """Refuse an ``--out`` that nothing can be written to.  :class:`UsageError` says why."""
    library = path if path.suffix == ".so" else path / "model.so"
    folder = library.parent
    if any(len(os.fsencode(part)) > _LONGEST_NAME for part in library.absolute().with_suffix("").parts):
        raise UsageError(f"--out has a name of more than {_LONGEST_NAME} bytes", hint="name it shorter")
    existing = next(one for one in (folder, *folder.absolute().parents) if one.exists() or one.is_symlink())
    problem = None
    if not existing.exists():
        problem = f"{existing} is a link to nothing"
    elif not existing.is_dir():
        problem = f"{existing} is a file"
    elif library.is_dir():
        problem = f"{library} is a folder"
    else:
        try:  # who may write is not all: some file systems take no files from anyone
            tempfile.TemporaryDirectory(dir=existing, prefix=".export-").cleanup()
        except OSError:
            problem = f"{existing} cannot be written to"
    if problem is not None:
        raise UsageError(f"--out {path}: {problem}", hint="name a folder, or a file that ends in .so")


def export(built: BuiltModel, options: argparse.Namespace) -> dict[str, Any]:
    """Check the built model (unless told not to), write it, say so; what was done, as JSON values.

    Nothing is written when the numbers are wrong (:class:`AccuracyError` comes from the check).
    """
    from hetero_tvm.reference.given import read_inputs

    accuracy, unrunnable = None, built.unrunnable
    if not options.no_check and unrunnable is not None:
        say(options, f"NOT CHECKED, the numbers of this build were never compared: {unrunnable}")
    elif not options.no_check:
        accuracy = built.check(inputs=None if options.inputs is None else read_inputs(options.inputs))
        say(options, "outputs agree with the reference:")
        say(options, "\n".join(f"  {line}" for line in str(accuracy).splitlines()))
    path = built.export(options.out)
    say(options, f"wrote {path}")
    if built.step is not None:
        say(options, f"net.session() keeps {number_of(len(built.step.room), 'state')} in place")
    elif built.no_step:
        say(options, f"net.session() copies what grows at every step: {built.no_step}")
    beside = []
    if str(options.model).lower().endswith(".json"):
        from hetero_tvm.compile.kernel_files import write_kernel_files

        beside = write_kernel_files(built, path)
        say(options, "\n".join(f"wrote {one}" for one in beside))
    return {
        "library": str(path),
        **({"files": [str(one) for one in beside]} if beside else {}),
        "accuracy": None if accuracy is None else plain(accuracy),
        "not_checked": unrunnable if accuracy is None else None,
        "kernels": [plain(kernel) for kernel in built.kernels],
    }


def plain(value: Any) -> Any:
    """Results of the API as JSON values."""
    if hasattr(value, "to_dict"):
        return plain(value.to_dict())
    if hasattr(value, "__dataclass_fields__"):
        return {name: plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return value.item() if hasattr(value, "item") else str(value)


def print_json(document: dict[str, Any]) -> None:
    print(json.dumps(plain(document), indent=2))


def print_error(kind: str, message: str, hint: str | None, problems: Sequence[str] = ()) -> None:
    """The document of a command that failed: programs that read stdout need not parse stderr."""
    told = {"type": kind, "message": as_typed(message), "problems": problems, "hint": as_typed(hint or "")}
    print_json({"error": told})


def say(options: argparse.Namespace, text: str, whole: bool = False) -> None:
    """Lines for people: on stdout, or on stderr when stdout is for JSON.

    A terminal gets them folded at blanks, with what goes on under what it belongs to; ``whole`` leaves them
    as they are (commands, which somebody copies).  Files and pipes always get whole lines.
    """
    if options.quiet:
        return
    stream = sys.stderr if options.json else sys.stdout
    if not whole and (stream.isatty() or "COLUMNS" in os.environ):
        text = paragraphs(text, console(stream).width)
    print(text, file=stream, flush=True)


def run(
    command: Callable[[argparse.Namespace], int], parse: argparse.ArgumentParser, argv: Sequence[str] | None
) -> int:
    """Parse, run, and turn errors into messages.

    Returns the exit status: 0; 2 when the user must change the command line, the model or a file; 1 when
    tuning, building, checking or running failed; 130 when interrupted, 143 and 129 when ended by SIGTERM and
    SIGHUP.  With HETERO_TVM_DEBUG=1 errors keep their traceback.  With ``--json`` an error is a document too.
    """
    return with_streams(lambda: _run(command, parse, argv))


def _run(
    command: Callable[[argparse.Namespace], int], parse: argparse.ArgumentParser, argv: Sequence[str] | None
) -> int:
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        options = parse.parse_args(given)
    except Refusal as refusal:
        if "--json" in given:
            print_error("UsageError", refusal.message, refusal.hint)
        raise
    options.argv = given
    as_json = getattr(options, "json", False)
    if os.environ.get(DEBUG_VARIABLE) == "1":
        check_options(options)
        return command(options)
    shown: set[str] = set()

    def show_once(message: Any, category: Any, filename: str, line: int, *rest: Any) -> None:
        # Python tells the same thing again from another line, as when one file of records is read twice.
        if str(message) not in shown:
            shown.add(str(message))
            print(f"warning: {message}", file=sys.stderr)

    warnings.showwarning = show_once
    with ended_by_signals() as ending:
        try:
            check_options(options)
            return command(options)
        except HeteroTVMError as error:
            print(f"error: {as_typed(str(error))}", file=sys.stderr)
            if as_json:
                print_error(type(error).__name__, error.message, error.hint, error.problems)
            return 1 if isinstance(error, _FAILURES) else 2
        except KeyboardInterrupt:
            print(
                "interrupted" if ending.number is None else f"ended by {ending.number.name}", file=sys.stderr
            )
            return 128 + (ending.number or signal.SIGINT)
        except MemoryError as error:
            message = f"there is not enough memory{f': {error}' if str(error) else ''}"
            hint = "smaller shapes (--batch, --sequence, --shape), or a machine with more memory"
            print(f"error: {message}\nWhat to do: {hint}", file=sys.stderr)
            if as_json:
                print_error("MemoryError", message, hint)
            return 1
        except BrokenPipeError:
            raise
        except Exception as error:
            if is_of_output(error):
                raise
            what, where, status = in_words(error)
            print(f"error: {what}\n{where}", file=sys.stderr)
            if as_json:
                print_error(type(error).__name__, str(error), where)
            return status
