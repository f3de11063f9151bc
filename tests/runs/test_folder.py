"""A run directory is edited by one process at a time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rowssl.core.files import Busy
from rowssl.runs.folder import locked


def test_a_lock_is_waited_for_no_longer_than_said(tmp_path: Path) -> None:
    with locked(tmp_path):
        began = time.monotonic()
        with pytest.raises(Busy, match="Another process is editing"), locked(tmp_path, patience=0.2):
            raise AssertionError
        assert 0.2 <= time.monotonic() - began < 10
    with locked(tmp_path, patience=0.2):
        pass
