"""Keys: every binding has an id and a sentence, and `keys.toml` in the config folder gives it other keys.

[keys]
"chat.stop" = "escape,ctrl+g"
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from textual.app import App
from textual.binding import Binding
from textual.dom import DOMNode

from localspec import paths
from localspec.errors import UsageError, reason

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def bind(
    name: str, key: str, action: str, description: str, tooltip: str, *, show: bool = False, priority: bool = False
) -> Binding:
    """A binding that people can find and remap. `show`: in the footer. `priority`: before what has the focus."""
    return Binding(key, action, description, id=name, tooltip=tooltip, show=show, priority=priority)


CLOSE = bind("screen.close", "escape", "close", "Close", "Back to the chat", show=True)
"""For screens; the action `close` is `Dialog`'s and `Page`'s."""


def keys_file() -> Path:
    """Where people write their own keys."""
    return paths.config_dir() / "keys.toml"


def read_keys() -> dict[str, str]:
    """{binding id: keys, comma between them} of the user's file; {} without one.

    Raises:
        UsageError: the file cannot be read, or is not a table of texts.
    """
    path = keys_file()
    try:
        table = tomllib.loads(paths.read_own(path)).get("keys", {})
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {reason(error)}.", "Your keys are left as they were.") from None
    if not isinstance(table, dict):
        raise UsageError(f"{path}: keys is {table!r}; it must be a table such as [keys].")
    for name, keys in table.items():
        if not isinstance(keys, str) or not keys.strip():
            raise UsageError(f'{path}: {name} is {keys!r}; it must be keys in quotes, such as "ctrl+g".')
    return {name: ",".join(key.strip() for key in keys.split(",")) for name, keys in table.items()}


def shown(app: App[Any], binding: Binding) -> str:
    """The keys of a binding as people read them, as remapped."""
    keys = app._keymap.get(binding.id or "", binding.key)
    return " ".join(app.get_key_display(binding.with_key(key)) for key in keys.split(","))


def known() -> dict[str, Binding]:
    """{id: binding} of every widget, screen and app of this package that has been imported."""
    found: dict[str, Binding] = {}
    kinds: list[type[DOMNode]] = [DOMNode]
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        if kind.__module__.startswith("localspec.tui"):
            for binding in kind.__dict__.get("BINDINGS", ()):
                if isinstance(binding, Binding) and binding.id:
                    found[binding.id] = binding
    return found
