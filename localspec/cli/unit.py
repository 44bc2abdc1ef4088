"""A command as a service of the user's, started by systemd or launchd."""

from __future__ import annotations

import plistlib
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from localspec import paths

KINDS = ("systemd", "launchd")
_LABEL = "localspec.serve"
_LOG = "Library/Logs/localspec.log"


def unit(kind: str, arguments: Sequence[str], environment: Mapping[str, str], folder: Path) -> str:
    """The text of a unit.

    Args:
        kind: of `KINDS`.
        arguments: of `localspec`.
        environment: variables that it needs; nothing secret.
        folder: where paths in the arguments begin.
    """
    command = [sys.executable, "-m", "localspec", *arguments]
    return (_systemd if kind == "systemd" else _launchd)(command, environment, folder)


def _systemd(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> str:
    lines = [
        "# Save it as ~/.config/systemd/user/localspec.service, then: systemctl --user enable --now localspec",
        "[Unit]",
        "Description=localspec " + " ".join(map(shlex.quote, command[3:])).replace("%", "%%").replace("\n", " "),
        "",
        "[Service]",
        "ExecStart=" + " ".join(_quoted(part, "$") for part in command),
        "WorkingDirectory=" + str(folder).replace("%", "%%"),
        *("Environment=" + _quoted(f"{name}={value}") for name, value in environment.items()),
        "Restart=on-failure",
        "RestartSec=5",
        "",
        "[Install]",
        "WantedBy=default.target",
    ]
    return "\n".join(lines) + "\n"


def _quoted(text: str, doubled: str = "") -> str:
    """One word of a unit; characters that mean something there are doubled or escaped."""
    for one in ("%", *doubled):
        text = text.replace(one, 2 * one)
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _launchd(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> str:
    where = f"~/Library/LaunchAgents/{_LABEL}.plist"
    unit = {
        "Label": _LABEL,
        "ProgramArguments": list(command),
        "WorkingDirectory": str(folder),
        "EnvironmentVariables": dict(environment),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "StandardOutPath": str(paths.home() / _LOG),
        "StandardErrorPath": str(paths.home() / _LOG),
    }
    head, line, rest = plistlib.dumps(unit, sort_keys=False).decode().partition("\n")
    return f"{head}{line}<!-- Save it as {where}, then: launchctl load -w {where} -->\n{rest}"
