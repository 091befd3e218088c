"""Parser of all commands, and scripts for shell completion."""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from specdemo.cli import compare, doctor, experiments, models, serve
from specdemo.cli.options import Commands
from specdemo.engines import load_engine
from specdemo.errors import capitalised
from specdemo.experiments import KINDS
from specdemo.version import __version__
from specdemo.worker import EngineFactory

_LONGEST = 400
TOPICS = {
    "the page": ("serve",),
    "measure": ("compare", "sweep", *(kind.name for kind in KINDS)),
    "models": ("models",),
    "settings elsewhere": ("code",),
    "this machine": ("doctor", "completion"),
}


def build_parser(load: EngineFactory = load_engine) -> argparse.ArgumentParser:
    """Return the parser of all commands; options for settings come from the settings classes.

    `load` loads the engines of commands.
    """
    called = "specdemo" if Path(sys.argv[0]).stem == "specdemo" else "python -m specdemo"
    parser = Parser(
        prog=called,
        usage=f"{called} COMMAND [OPTION …]",
        description="Does speculative decoding pay off here?",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(load_engine=load)
    parser.add_argument("--version", action="version", version=f"specdemo {__version__}")
    commands = parser.add_subparsers(prog=called, required=True, metavar="COMMAND", help=argparse.SUPPRESS)
    for command in (serve, compare, experiments, models, doctor):
        command.add_to(commands)
    _add_completion(commands)
    parser.epilog = "\n".join(_by_topic({action.dest: action.help or "" for action in commands._choices_actions}))
    return parser


def _by_topic(helps: Mapping[str, str]) -> Iterator[str]:
    """Yield every command with its help, by topic."""
    width = max(map(len, helps))
    listed = {name for names in TOPICS.values() for name in names}
    others = tuple(name for name in helps if name not in listed)
    for topic, names in (TOPICS | ({"more": others} if others else {})).items():
        yield f"{topic}:"
        yield from (f"  {name:<{width}}  {helps[name]}" for name in names if name in helps)
    yield "\nAll options of one: COMMAND --help"


class Parser(argparse.ArgumentParser):
    """Parser whose errors are one sentence."""

    def error(self, message: str) -> NoReturn:
        """End with one sentence, without the usage, shortening any long argument that it repeats."""
        half = _LONGEST // 2
        short = message if len(message) <= _LONGEST else f"{message[:half]} … {message[-half:]}"
        if short.endswith("required: PROMPT"):
            short = f'Give a prompt, such as: {self.prog} "Once upon a time"'
        self.exit(2, f"specdemo: {capitalised(short)}; {self.prog} --help lists all options.\n")


_BASH = """\
_specdemo() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" command="${{COMP_WORDS[1]}}" words
    if [ "$COMP_CWORD" -eq 1 ]; then words="{commands}"; else
        case "$command" in
{cases}
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
    [ "${{#COMPREPLY[@]}}" -gt 0 ] || COMPREPLY=($(compgen -f -- "$word"))
}}
complete -o filenames -F _specdemo specdemo"""
_ZSH = "autoload -U +X bashcompinit && bashcompinit\n"
_POWERSHELL = """\
Register-ArgumentCompleter -Native -CommandName specdemo -ScriptBlock {{
    param($word, $ast, $position)
    $words = ConvertFrom-Json '{words}'
    $typed = @($ast.CommandElements | ForEach-Object {{ $_.ToString() }})
    $command = if ($typed.Count -gt 2 -or ($typed.Count -eq 2 -and $word -eq '')) {{ $typed[1] }} else {{ '' }}
    $words.$command | Where-Object {{ $_ -like "$word*" }} | ForEach-Object {{
        [System.Management.Automation.CompletionResult]::new($_)
    }}
}}"""
SHELLS = ("bash", "zsh", "fish", "powershell")


def _add_completion(commands: Commands) -> None:
    parser = commands.add_parser("completion", help="print a script that completes commands and options in a shell")
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))

    def complete(options: argparse.Namespace) -> None:
        print(completion(options.shell, words_of(commands.choices)))

    parser.set_defaults(command=complete)


def commands_of(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    """Return the parser of each command, or of each subcommand of a command; empty if there are none."""
    return next((action.choices for action in parser._actions if isinstance(action.choices, Mapping)), {})


def words_of(parsers: Mapping[str, argparse.ArgumentParser]) -> dict[str, list[str]]:
    """Return what can follow each command: its options or subcommands; the first words are under ""."""
    words = {"": sorted(parsers)}
    for name, parser in parsers.items():
        words[name] = [
            *commands_of(parser),
            *(option for action in parser._actions for option in action.option_strings),
        ]
    return words


def completion(shell: str, words: Mapping[str, Sequence[str]]) -> str:
    """Return the lines that a shell's start-up file needs to complete these words."""
    if shell == "fish":
        lines = ["complete -c specdemo -n __fish_use_subcommand -f -a '" + " ".join(words[""]) + "'"]
        for command, each in words.items():
            seen = f"complete -c specdemo -n '__fish_seen_subcommand_from {command}'"
            lines += [f"{seen} -l {word[2:]}" for word in each if command and word.startswith("--")]
            inner = [word for word in each if command and not word.startswith("-")]
            lines += [f"{seen} -f -a '{' '.join(inner)}'"] if inner else []
        return "\n".join(lines)
    if shell == "powershell":
        return _POWERSHELL.format(words=json.dumps(dict(words)))
    cases = "\n".join(f'            {name}) words="{" ".join(each)}" ;;' for name, each in words.items() if name)
    bash = _BASH.format(commands=" ".join(words[""]), cases=cases)
    return _ZSH + bash if shell == "zsh" else bash
