"""`completion`: a script that has a shell complete commands and options."""

import argparse
import json
from collections.abc import Mapping, Sequence

from specdemo.cli.options import Commands

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


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("completion", help="print a script that completes commands and options in a shell")
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))

    def complete(options: argparse.Namespace) -> None:
        print(script(options.shell, words_of(commands.choices)))

    parser.set_defaults(command=complete)


def words_of(parsers: Mapping[str, argparse.ArgumentParser]) -> dict[str, list[str]]:
    """What can follow each command: its options, or its own commands; what can come first stands under ""."""
    found = {"": sorted(parsers)}
    for name, parser in parsers.items():
        inner = [word for action in parser._actions if isinstance(action.choices, Mapping) for word in action.choices]
        found[name] = [*inner, *(option for action in parser._actions for option in action.option_strings)]
    return found


def script(shell: str, words: Mapping[str, Sequence[str]]) -> str:
    """The lines to add to a shell's start-up file."""
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
