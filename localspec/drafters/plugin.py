"""Drafters that others write: found by `package.module:Class`, or by name among installed packages.

A package offers a drafter as an entry point of the group `localspec.drafters`, called as the drafter calls itself. The
class follows `engine.interfaces.Drafter` and is made with one argument, a `Setup`, each time drafters are put together
(at load, and when they are changed). `packaging/plugin` is a complete example.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from localspec.drafters.custom import Custom
from localspec.drafters.setup import Setup as Setup
from localspec.engine.interfaces import Drafter, Needs
from localspec.errors import UsageError
from localspec.methods import NAMES

ENTRY_POINT_GROUP = "localspec.drafters"
"""Entry points of this group are drafters."""
_NAME_FORM = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_RESERVED_NAMES = {*NAMES, "cascade", "prediction"}
_ATTRIBUTE_TYPES: dict[str, type] = {"name": str, "needs": Needs, "free": bool}
_METHOD_ARGUMENTS = {"missing": 2, "draft": 1, "observe": 1, "close": 0}
"""{name of a method: number of its arguments}."""


def installed() -> list[str]:
    """Names of the drafters that installed packages offer; nothing of theirs is imported."""
    return sorted({point.name for point in entry_points(group=ENTRY_POINT_GROUP)})


def check_name(name: str) -> None:
    """Imports what a name stands for, so that a mistake is found before minutes are spent on loading.

    Args:
        name: of `methods.NAMES`, of an installed package's drafter, or `package.module:Class`.

    Raises:
        UsageError: there is no such drafter, or what there is cannot be one.
    """
    if name not in NAMES:
        _find(name)


def make(name: str, setup: Setup) -> Custom:
    """The drafter that a name stands for, held to the contract (`Custom`).

    Args:
        name: of an installed package's drafter, or `package.module:Class`.
        setup: handed to the class.

    Raises:
        UsageError: there is no such drafter, or it cannot be made or used; says why.
    """
    kind = _find(name)
    try:
        drafter = kind(setup)
    except (Exception, SystemExit) as error:
        raise UsageError(f"The drafter {name} cannot be made: {_said(error)}.") from error
    _check(name, drafter)
    registered = ":" not in name
    if registered and drafter.name != name:
        raise UsageError(f"The drafter {name} calls itself {drafter.name!r}; its entry point must have that name.")
    return Custom(drafter, setup.n_vocab, setup.max_leaves)


def _find(name: str) -> Callable[[Setup], Drafter]:
    """The class; imports its module."""
    place = name if ":" in name else _registered(name)
    module, _, attribute = place.partition(":")
    if not all(part.isidentifier() for part in [*module.split("."), *attribute.split(".")]):
        raise UsageError(f"The drafter is {place!r}; it must look like package.module:Class.")
    try:
        found: Any = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise UsageError(f"The drafter {name} cannot be imported: {_said(error)}.") from error
        raise UsageError(
            f"The drafter {name} is not there: Python finds no module {error.name}.",
            "Install it, or put its folder on PYTHONPATH.",
        ) from None
    except (Exception, SystemExit) as error:
        raise UsageError(f"The drafter {name} cannot be imported: {_said(error)}.") from error
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise UsageError(f"The drafter {name} is not there: the module {module} has no {attribute}.")
    if not callable(found):
        raise UsageError(f"The drafter {name} is no class: {attribute} is {found!r:.60}.")
    return found  # type: ignore[no-any-return]


def _registered(name: str) -> str:
    """Where the drafter of that name is, by the package that offers it."""
    if name in _RESERVED_NAMES:
        raise UsageError(f"A package offers a drafter called {name!r}, which is one of localspec's own names.")
    places = sorted({point.value for point in entry_points(group=ENTRY_POINT_GROUP, name=name)})
    if not places:
        known = ", ".join([*NAMES, *installed()])
        raise UsageError(f"There is no drafter called {name!r}; there are: {known}.", "Or give package.module:Class.")
    if len(places) > 1:
        raise UsageError(f"Installed packages offer {len(places)} drafters called {name!r}: {', '.join(places)}.")
    return places[0]


def _check(name: str, drafter: Any) -> None:
    """Checks that an object has the attributes and methods of `Drafter`.

    Raises:
        UsageError: one is missing or wrong; the message names it.
    """
    for fact, kind in _ATTRIBUTE_TYPES.items():
        value = getattr(drafter, fact, None)
        if not isinstance(value, kind):
            raise UsageError(f"The drafter {name} is none: its `{fact}` is {value!r:.60}, not a {kind.__name__}.")
    for method, count in _METHOD_ARGUMENTS.items():
        _check_method(name, method, getattr(drafter, method, None), count)
    own = drafter.name
    if not _NAME_FORM.fullmatch(own):
        raise UsageError(
            f"The drafter {name} calls itself {own!r}.",
            "A name is up to 32 lower-case letters, digits, - and _, a letter first.",
        )
    if own in _RESERVED_NAMES:
        raise UsageError(f"The drafter {name} calls itself {own!r}, which is one of localspec's own names.")
    if drafter.needs.hidden_layers:
        raise UsageError(f"The drafter {name} needs hidden states, which drafters from outside do not get yet.")


def _check_method(name: str, method: str, found: Any, count: int) -> None:
    if not callable(found):
        raise UsageError(f"The drafter {name} is none: it has no method `{method}`.")
    try:
        inspect.signature(found).bind(*[None] * count)
    except TypeError:
        arguments = "no argument" if count == 0 else f"{count} argument{'s' if count > 1 else ''}"
        raise UsageError(f"The drafter {name} is none: its method `{method}` does not take {arguments}.") from None
    except ValueError:  # written in C without a signature
        pass


def _said(error: BaseException) -> str:
    """An exception in a line."""
    text = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
