import io

import pytest
from rich.console import Console

from lipcert.training import progress as module
from lipcert.training.progress import PlainLines, RichBar, Silent, clock, for_terminal


@pytest.fixture
def now(monkeypatch):
    times = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: times[0])
    return times


def test_plain_lines_come_at_intervals_and_with_evaluations(now):
    stream = io.StringIO()
    lines = PlainLines(stream, interval=15)
    lines.begin(step=100, total_steps=400, steps_per_epoch=50, batch_size=128)
    for step in range(101, 201):  # one step per second
        now[0] += 1
        lines.advance(step=step, loss=0.5)
    lines.evaluated(epoch=4.0, loss=0.5, standard=0.5, certified=0.25)
    lines.end()
    written = stream.getvalue().splitlines()
    assert len(written) == 100 // 15 + 1
    # Step 115 after 15 seconds: 285 steps are left.
    assert written[0] == "step 115/400  epoch 2.30  loss 0.5000  128 images/s  4:45 left"
    assert written[-1] == "epoch 4  loss 0.5000  held-out 50.00%, certified at 36/255 25.00% (estimate)"


def test_a_run_that_stood_still_soon_forgets_it(now):
    stream = io.StringIO()
    lines = PlainLines(stream, interval=15)
    lines.begin(step=0, total_steps=10_000, steps_per_epoch=50, batch_size=64)
    lines.advance(step=1, loss=0.5)
    now[0] += 3600  # an hour in the drawer
    for step in range(2, 1002):
        now[0] += 1
        lines.advance(step=step, loss=0.5)
    written = stream.getvalue().splitlines()
    assert "0 images/s" in written[0]
    assert "64 images/s" in written[-1]
    done = int(written[-1].split()[1].split("/")[0])
    assert written[-1].endswith(f"{clock(10_000 - done)} left")


def test_bar_shows_loss_accuracies_speed_and_time(now):
    stream = io.StringIO()
    bar = RichBar(Console(file=stream, force_terminal=True, width=160))
    bar.begin(step=0, total_steps=10, steps_per_epoch=5, batch_size=100)
    now[0] += 2
    bar.advance(step=5, loss=0.125)
    bar.evaluated(epoch=1.0, loss=0.5, standard=0.5, certified=0.25)
    bar.say("a [message]")
    bar.end()
    written = stream.getvalue()
    for text in (
        "loss 0.125",
        "held-out 50.0%, certified 25.0%",
        "250 images/s",
        "a [message]",
        "5/10",
        "0:02 left",
    ):
        assert text in written


def test_bar_may_end_before_it_began():
    RichBar(Console(file=io.StringIO())).end()


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_kind_follows_the_stream():
    assert isinstance(for_terminal(io.StringIO()), PlainLines)
    assert isinstance(for_terminal(Terminal()), RichBar)


def test_silence(capsys):
    silent = Silent()
    silent.begin(step=0, total_steps=1, steps_per_epoch=1, batch_size=1)
    silent.advance(step=1, loss=0.0)
    silent.evaluated(epoch=1.0, loss=0.5, standard=1.0, certified=1.0)
    silent.say("nothing")
    silent.end()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (59.4, "0:59"), (60, "1:00"), (7325, "2:02:05")])
def test_clock(seconds, text):
    assert clock(seconds) == text
