"""The progress display: what a log says of work that moves in small steps, or goes on where it was stopped."""

from __future__ import annotations

import pytest

from rowssl.core import console


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(console.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_a_move_between_two_epochs_is_told_with_what_is_left(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with console.bar("training, epoch", 5) as shown:
        shown.move(0)
        clock.now += 30
        shown.move(0.25)
    assert capsys.readouterr().err == "training, epoch: 0.25 of 5, 0:30 gone, about 9:30 to go\n"


def test_what_was_done_before_a_kill_took_no_time_of_this_run(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with console.bar("training, epoch", 50) as shown:
        clock.now += 100  # until the first step
        shown.move(40)
        clock.now += 30
        shown.move(41)
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "training, epoch: 40 of 50, 0:00 gone"
    assert said[1] == "training, epoch: 41 of 50, 0:30 gone, about 4:30 to go"


def test_moves_are_shown_a_few_times_a_second(clock: Clock) -> None:
    with console.bar("training, epoch", 5) as shown:
        places = []
        for step in range(16):
            shown.move(step / 16)
            clock.now += 1 / 16
            places.append(shown.done)
        assert sorted(set(places)) == [0, 0.25, 0.5, 0.75]
        shown.advance(to=1, note="loss 3")
    assert (shown.done, shown.note) == (1, "loss 3")
