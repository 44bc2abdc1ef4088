"""Settings that another version saved: those of 0.1 count, and those of a newer one that this one does not know do not.

tests/data/saved-0.1/settings.json was written by 0.1 itself (commit bf47e49).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from localspec.errors import UsageError
from localspec.options import Options
from localspec.settings import Setting
from localspec.tui.screens.settings import _shown, check_engine
from localspec.tui.talk.session import Preferences, checked

RECORDED = Path(__file__).parents[1] / "data" / "saved-0.1" / "settings.json"


def test_settings_of_0_1_count() -> None:
    found = Preferences.load(RECORDED)
    assert (found.theme, found.resume, found.fold_paste_lines) == ("localspec-light", False, 12)
    assert found.engine == {"threads": 2, "context": 2048, "cache": "q8_0", "gpu_layers": 4}
    check_engine(found.engine)
    assert checked(found.parameters) == found.parameters
    assert found.parameters["stop"] == ["END"]
    assert found.system == "Be brief."


def test_what_is_saved_now_0_1_can_read(tmp_path: Path) -> None:
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    Preferences.load(RECORDED).save(tmp_path / "settings.json")
    saved = json.loads((tmp_path / "settings.json").read_text(encoding="utf-8"))
    assert {name: saved[name] for name in recorded} == recorded


def test_a_word_that_is_no_choice_is_said(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text('{"answer_end": "gong"}', encoding="utf-8")
    with pytest.raises(UsageError, match="answer_end is 'gong'; it must be one of auto, off, bell, notify"):
        Preferences.load(tmp_path / "settings.json")


def test_a_setting_that_only_a_newer_version_knows_is_left_out(tmp_path: Path) -> None:
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    newer = recorded | {"hologram": True, "engine": recorded["engine"] | {"warp": 9}}
    (tmp_path / "settings.json").write_text(json.dumps(newer), encoding="utf-8")
    assert Preferences.load(tmp_path / "settings.json") == Preferences.load(RECORDED)


def test_a_choice_of_number_one_is_no_switch() -> None:
    choice, switch = Setting("n", str, True, ("1", "2"), None, Options), Setting("n", bool, True, (), None, Options)
    assert [_shown(choice, value) for value in (1, None, ["a"])] == ["1", "default", "['a']"]
    assert [_shown(switch, value) for value in (1, 0, None)] == ["on", "off", "default"]
