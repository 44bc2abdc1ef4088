"""Drafters from outside are found, made and checked; what is wrong is said in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.drafters import plugin
from localspec.errors import UsageError
from localspec.methods import NAMES
from tests.drafters import plug_ins

HERE = plug_ins.__name__


def test_a_class_is_made_with_the_setup_and_keeps_what_it_says_of_itself() -> None:
    told = plug_ins.setup()
    drafter = plugin.make(f"{HERE}:Silent", told)
    assert (drafter.name, drafter.free, drafter.needs.hidden_layers, drafter.fault) == ("silent", True, (), "")
    assert not plugin.make(f"{HERE}:Slow", told).free


def test_an_installed_package_offers_a_drafter_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert plugin.installed() == []
    plug_ins.offer(tmp_path, monkeypatch, silent=f"{HERE}:Silent")
    assert plugin.installed() == ["silent"]
    plugin.check_name("silent")
    assert plugin.make("silent", plug_ins.setup()).name == "silent"
    with pytest.raises(UsageError, match=r"no drafter called 'oracle'; there are: auto, .*, silent. Or give"):
        plugin.check_name("oracle")


@pytest.mark.parametrize("name", NAMES)
def test_own_names_need_nobody_else(name: str) -> None:
    plugin.check_name(name)


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("oracle", "no drafter called 'oracle'"),
        ("no_such_package.drafters:Best", "Python finds no module no_such_package. Install it"),
        (f"{HERE}.more:Best", f"Python finds no module {HERE}.more. "),
        (f"{HERE}:Best", f"the module {HERE} has no Best"),
        (f"{HERE}:SOMETHING", "is no class: SOMETHING is 'no class at all'"),
        (f"{HERE}:", "must look like package.module:Class"),
        (":Best", "must look like package.module:Class"),
        ("../evil.py:Best", "must look like package.module:Class"),
    ],
)
def test_a_drafter_that_is_not_there_is_refused_before_anything_is_loaded(place: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        plugin.check_name(place)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("Unborn", "cannot be made: OSError: its weights are not there"),
        ("Nameless", "its `name` is None, not a str"),
        ("Shouting", "calls itself 'LOUD one'. A name is"),
        ("Impostor", "calls itself 'draft', which is one of localspec's own names"),
        ("Priceless", "its `free` is 1, not a bool"),
        ("Deep", "needs hidden states"),
        ("Deaf", "it has no method `observe`"),
        ("Curt", "its method `draft` does not take 1 argument"),
    ],
)
def test_a_class_that_is_no_drafter_is_refused(kind: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        plugin.make(f"{HERE}:{kind}", plug_ins.setup())
    assert f"{HERE}:{kind}" in str(error.value)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import not_installed_either", "cannot be imported: ModuleNotFoundError: No module named 'not_installed_"),
        ("raise SystemExit('bye')", "cannot be imported: SystemExit: bye"),
        ("def (", "cannot be imported: SyntaxError"),
    ],
)
def test_a_module_that_fails_is_told_from_one_that_is_not_there(
    source: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing_plug_in.py").write_text(source, "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UsageError) as error:
        plugin.check_name("failing_plug_in:Best")
    assert said in str(error.value)


def test_names_that_clash_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plug_ins.offer(tmp_path / "one", monkeypatch, silent=f"{HERE}:Silent", draft=f"{HERE}:Impostor")
    with pytest.raises(UsageError, match="offers a drafter called 'draft', which is one of localspec's own names"):
        plugin.make("draft", plug_ins.setup())
    other = tmp_path / "two" / "other-1.0.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n", "utf-8")
    (other / "entry_points.txt").write_text(f"[localspec.drafters]\nsilent = {HERE}:Tiring\n", "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path / "two"))
    assert plugin.installed() == ["draft", "silent"]
    with pytest.raises(UsageError, match="offer 2 drafters called 'silent'"):
        plugin.check_name("silent")


def test_the_entry_point_is_called_as_the_drafter_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plug_ins.offer(tmp_path, monkeypatch, quiet=f"{HERE}:Silent")
    with pytest.raises(UsageError, match="The drafter quiet calls itself 'silent'"):
        plugin.make("quiet", plug_ins.setup())
