"""Completion of commands, options and the names that options take, for bash, zsh and fish."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence

from hetero_tvm import zoo
from hetero_tvm.benchmarking.runtimes import PEERS
from hetero_tvm.cli import names
from hetero_tvm.cli.parsing import Parser
from hetero_tvm.targets.precisions import PRECISIONS

_VALUES = {
    "--target": names.TARGETS,
    "--disable": names.FUSIONS,
    "--precision": PRECISIONS,
    "--vs": tuple(PEERS),
}
"""Values by option; after all others files are completed."""


def script(shell: str, parsers: Mapping[str, Parser], texts: Mapping[str, str]) -> str:
    """A script for ``bash``, ``zsh`` or ``fish``.

    Parameters
    ----------
    parsers : parser of each command, by name.
    texts : a line on each command.
    """
    if shell == "fish":
        return _fish(parsers, texts)
    return _bash(parsers) if shell == "bash" else _zsh(parsers)


def _further(parsers: Mapping[str, Parser]) -> dict[str, Sequence[str]]:
    """Commands that have no parser, and what may follow them."""
    return {"help": [*parsers], "completion": names.SHELLS}


def _following(parsers: Mapping[str, Parser]) -> dict[str, Sequence[str]]:
    """Commands, those without a parser too, and what may follow them."""
    return {**{name: _words(parser) for name, parser in parsers.items()}, **_further(parsers)}


def _words(parser: Parser) -> list[str]:
    """Options and subcommands of a command, and the models of the zoo where it takes a model."""
    takes_model = any(action.dest == "model" and not action.option_strings for action in parser._actions)
    models = [f"zoo:{name}" for name in zoo.names()] if takes_model else []
    return [*parser.subcommands(), *parser.options(), *models]


def _bash(parsers: Mapping[str, Parser]) -> str:
    values = "".join(
        f"    {option}) words={_quoted(known)} ;;\n" for option, known in sorted(_VALUES.items())
    )
    following = _following(parsers)
    commands = "".join(f"    {name}) words={_quoted(words)} ;;\n" for name, words in following.items())
    # A colon and a comma belong to the words: cpu:znver4, zoo:bert-base.
    return f"""_hetero_tvm() {{
  local words="" current="${{COMP_LINE:0:COMP_POINT}}"
  local -a before
  read -r -a before <<< "$current"
  case "$current" in *" ") current="" ;; *) current="${{before[-1]}}"; unset 'before[-1]' ;; esac
  case "${{before[-1]}}" in
{values}    *) case "${{before[1]:-}}" in
    "") words={_quoted(following)} ;;
{_indent(commands)}    esac ;;
  esac
  local prefix=""
  case "$current" in *:*) prefix="${{current%"${{current##*:}}"}}" ;; esac
  COMPREPLY=()
  local word
  for word in $(compgen -W "$words" -- "$current"); do COMPREPLY+=("${{word#"$prefix"}}"); done
}}
complete -o default -F _hetero_tvm hetero-tvm
"""


def _zsh(parsers: Mapping[str, Parser]) -> str:
    """Script in zsh's own words: what zsh has for bash's scripts cuts lines in other ways."""
    following = _following(parsers)
    values = "".join(f"    {option}) found=({_listed(_VALUES[option])}) ;;\n" for option in sorted(_VALUES))
    commands = "".join(f"      {name}) found=({_listed(words)}) ;;\n" for name, words in following.items())
    return f"""(( $+functions[compdef] )) || {{ autoload -Uz compinit && compinit; }}
_hetero_tvm() {{
  local -a found
  case "${{words[CURRENT-1]}}" in
{values}    *)
      if (( CURRENT == 2 )); then
        found=({_listed(following)})
      else
        case "${{words[2]}}" in
{_indent(commands)}        esac
        _files
      fi ;;
  esac
  (( $#found )) && compadd -- "${{found[@]}}"
}}
compdef _hetero_tvm hetero-tvm
"""


def _fish(parsers: Mapping[str, Parser], texts: Mapping[str, str]) -> str:
    lines = [
        f"complete -c hetero-tvm -n __fish_use_subcommand -f -a {name} -d {shlex.quote(texts[name])}"
        for name in parsers
    ]
    further = _further(parsers)
    lines.append(f"complete -c hetero-tvm -n __fish_use_subcommand -f -a {_quoted(further)}")
    for name, words in further.items():
        lines.append(f"complete -c hetero-tvm -n '__fish_seen_subcommand_from {name}' -f -a {_quoted(words)}")
    for name, parser in parsers.items():
        inside = f"complete -c hetero-tvm -n '__fish_seen_subcommand_from {name}'"
        for option in parser.options():
            known = f" -x -a {_quoted(_VALUES[option])}" if option in _VALUES else ""
            lines.append(f"{inside} -l {option[2:]}{known}")
        if words := [word for word in _words(parser) if not word.startswith("-")]:
            lines.append(f"{inside} -a {_quoted(words)}")
    return "\n".join(lines) + "\n"


def _quoted(words: Iterable[str]) -> str:
    return shlex.quote(" ".join(words))


def _listed(words: Iterable[str]) -> str:
    return " ".join(map(shlex.quote, words))


def _indent(text: str) -> str:
    return "".join(f"  {line}\n" for line in text.splitlines())
