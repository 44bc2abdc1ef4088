"""A claimed file tells whether its process lives."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from localspec.processes import Claim, is_held


def test_a_claim_is_held_until_it_is_released_by_whatever_thread(tmp_path: Path) -> None:
    path = tmp_path / "one"
    claim = Claim(path)
    assert is_held(path)
    with pytest.raises(OSError, match="one"):
        Claim(path)
    thread = threading.Thread(target=claim.release)
    thread.start()
    thread.join()
    assert not path.exists()
    assert not is_held(path)


def test_a_file_that_nobody_holds_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "left"
    path.touch()
    assert not is_held(path)
    assert not path.exists()


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        Claim(tmp_path / "file" / "one")
