"""`localspec completion`: the script that lets a shell complete commands and options. packaging/shell makes it."""

from __future__ import annotations

import argparse
import sys

from localspec import paths

SCRIPTS = {"bash": "localspec.bash", "zsh": "_localspec", "fish": "localspec.fish"}
"""By shell, its file among the data that are shipped."""
_DESCRIPTION = """\
Prints the script that completes localspec's commands and options. It is also installed where shells look for such
scripts, share/ of the installation. To use it at once, and in every new shell:

  bash  eval "$(localspec completion bash)"          in ~/.bashrc
  zsh   eval "$(localspec completion zsh)"           in ~/.zshrc, after compinit
  fish  localspec completion fish | source           in ~/.config/fish/config.fish
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.add_argument("shell", choices=[*SCRIPTS], metavar="SHELL", help=f"one of {', '.join(SCRIPTS)}")


def run(options: argparse.Namespace) -> int:
    sys.stdout.write(paths.bundled(f"shell/{SCRIPTS[options.shell]}").read_text(encoding="utf-8"))
    return 0
