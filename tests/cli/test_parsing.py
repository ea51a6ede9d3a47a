"""The one style of the command lines: examples and exit codes in each help, refusals with what was meant."""

import importlib

import pytest

from hetero_tvm.__main__ import COMMANDS
from hetero_tvm.cli.parsing import EXITS, Parser, add_output_options, command_parser

ALL = pytest.mark.parametrize("name", COMMANDS)


@ALL
def test_each_help_has_examples_exit_codes_and_a_version(name, capsys):
    parser = importlib.import_module(f"hetero_tvm.{name}").make_parser()
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(["--help"])
    said = capsys.readouterr().out
    assert ended.value.code == 0
    assert f"python -m hetero_tvm.{name}" in said.partition("examples:")[2]
    assert "exit status:\n  0 " in said and "  2 " in said and "--version" in said
    assert max(map(len, said.partition("examples:")[0].splitlines())) <= 100


@ALL
def test_examples_parse(name):
    """What a help shows is a command line that the parser takes."""
    import shlex

    parser = importlib.import_module(f"hetero_tvm.{name}").make_parser()
    shown = [
        line.split(f"hetero_tvm.{name}", 1)[1].partition(" > ")[0]
        for line in parser.epilog.splitlines()
        if line.startswith("  python -m")
    ]
    assert shown
    for arguments in shown:
        parser.parse_args(shlex.split(arguments))


def test_an_option_that_is_none_is_told_with_what_was_meant(capsys):
    parser = command_parser("build", "text", {"x": "y"})
    parser.add_argument("--target")
    add_output_options(parser)
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(["--tragets", "cpu"])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.startswith("error: unrecognized arguments: --tragets")
    assert "did you mean '--target'?" in said and "python -m hetero_tvm.build --help" in said


@pytest.mark.parametrize(
    "given, hint",
    [
        ("lib.so --vs onnxruntime openvino", "--vs takes one list: --vs onnxruntime,openvino;"),
        ("--vs onnxruntime openvino lib.so", "--vs takes one list: --vs onnxruntime,openvino;"),
        ("lib.so --vs onnxruntime, openvino --quiet", "--vs takes one list: --vs onnxruntime,openvino;"),
        ("net.onnx --streams 1 2 4", "--streams takes one list: --streams 1,2,4;"),
        ("net.onnx --shape a=1x2 b=3", "--shape is repeated: --shape a=1x2 --shape b=3;"),
        ("net.onnx --rounds 2 other", "to do: python -m"),
        ("net.onnx other --vs onnxruntime", "to do: python -m"),
    ],
)
def test_several_words_behind_an_option_of_one_value(given, hint, capsys):
    from hetero_tvm.bench import make_parser

    with pytest.raises(SystemExit):
        make_parser().parse_args(given.split())
    assert hint in capsys.readouterr().err


@pytest.mark.parametrize(
    "command, given, hint",
    [
        ("bench", "lib.so -t 5", "-t is --seconds S;"),
        ("bench", "lib.so -hint throughput", "-hint is --streams N;"),
        ("bench", "lib.so -nstreams 2", "-nstreams is --streams N;"),
        ("bench", "lib.so --concurrency 4", "--concurrency is --streams N;"),
        ("bench", "lib.so --exportTimes=t.json", "--exportTimes=t.json is --json;"),
        ("bench", "lib.so --percentile 99", "--percentile is told always: p50, p90, p99 and the worst call;"),
        ("bench", "-m lib.so", "-m is MODEL"),
        ("build", "--onnx=a.onnx --saveEngine=a.so", "--saveEngine=a.so is --out DIR;"),
        ("build", "a.onnx --fp16", "--fp16 is --precision f16;"),
        ("build", "a.onnx --int8", "--int8 is --precision int8;"),
        ("build", "a.onnx --minShapes=x:1x1", "--shape NAME=1x8..256"),
        ("build", "a.onnx -d CPU", "-d is --target"),
        ("build", "a.onnx --shape x:1x8", "Write --shape x=1x8."),
        ("build", "a.onnx --shape x:1x8,y[1,8]", "Write --shape x=1x8 --shape y=1x8."),
        ("tune", "a.onnx --num-trials 4", "--num-trials is --trials N;"),
        ("profile", "lib.so -o x.json", "to do: python -m"),  # profile has no --out
    ],
)
def test_options_of_other_tools_lead_to_ours(command, given, hint, capsys):
    parser = importlib.import_module(f"hetero_tvm.{command}").make_parser()
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(given.split())
    said = capsys.readouterr().err
    assert ended.value.code == 2 and hint in said, said


def test_what_is_written_has_a_short_option():
    from hetero_tvm.build import make_parser

    assert str(make_parser().parse_args(["a.onnx", "-o", "there"]).out) == "there"


def test_subcommands_are_checked_alike(capsys):
    parser = command_parser("db", "text", {"x": "y"}, EXITS)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list").add_argument("--role")
    commands.add_parser("merge")
    assert isinstance(parser.subcommands()["list"], Parser) and "--role" in parser.options()
    for arguments, expected in ((["lst"], "did you mean 'list'?"), (["list", "--rol"], "'--role'")):
        with pytest.raises(SystemExit):
            parser.parse_args(arguments)
        assert expected in capsys.readouterr().err


def test_version(capsys):
    from hetero_tvm import __version__

    with pytest.raises(SystemExit) as ended:
        command_parser("build", "text", {}).parse_args(["--version"])
    assert ended.value.code == 0 and capsys.readouterr().out == f"hetero-tvm {__version__}\n"
