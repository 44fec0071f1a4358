import builtins
import json
import re
import sys

import pytest

from lipcert.errors import ArgumentError, CheckpointError
from lipcert.runs.metrics import MetricsLog, environment, import_tensorboard, read_metrics

HELD_OUT = {"images": 3, "standard": 1 / 3, "certified": dict.fromkeys(("36/255", "72/255", "108/255"), 0.0)}


def record(step, kind="epoch", **more):
    plain = {"kind": kind, "step": step, "epoch": 0.5, "loss": 1 / 3, "elapsed": 1.0}
    return {**plain, "images_per_second": 9.0, "held_out": HELD_OUT, **more}


def test_records_come_back_as_written(tmp_path):
    log = MetricsLog(tmp_path, after_step=0)
    log.write(record(1, lr=0.1))
    log.write(record(2))
    assert read_metrics(tmp_path) == [record(1, lr=0.1), record(2)]


def test_new_run_starts_empty(tmp_path):
    MetricsLog(tmp_path, after_step=0).write(record(1))
    MetricsLog(tmp_path, after_step=0)
    assert read_metrics(tmp_path) == []


def test_resumed_run_drops_what_it_will_write_again(tmp_path):
    log = MetricsLog(tmp_path, after_step=0)
    for entry in (record(5), record(10), record(15), record(10, kind="test", model="last")):
        log.write(entry)
    with log.path.open("a") as file:
        file.write('{"kind": "epoch", "st')  # killed in the middle of a line
    log = MetricsLog(tmp_path, after_step=10)
    log.write(record(12))
    assert read_metrics(tmp_path) == [record(5), record(10), record(12)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("rubbish", "'rubbish' is not a JSON record: Expecting value"),
        ('{"kind": "epoch", "step": 1}', "is not a JSON record: content: lacks epoch"),
        ("[" * 10**5, "it is nested too deeply"),
        (json.dumps(record(1, loss="x")), "loss: expected a number, got 'x'"),
        (json.dumps(record(1, loss=1e999)), "Infinity is no number in JSON"),
        (json.dumps(record(1, held_out=HELD_OUT | {"standard": 2})), "held_out: expected shares from 0 to 1"),
    ],
)
def test_damaged_line_is_shown(tmp_path, line, message):
    (tmp_path / "metrics.jsonl").write_text(f"{json.dumps(record(1))}\n{line}\n{json.dumps(record(2))}\n")
    with pytest.raises(
        CheckpointError, match=rf"is damaged .*{re.escape(message)}.*; remove that line, or the"
    ):
        read_metrics(tmp_path)


def test_unwritable_log_is_one_sentence(tmp_path):
    log = MetricsLog(tmp_path, after_step=0)
    log.path.unlink()
    log.path.mkdir()
    with pytest.raises(CheckpointError, match=r"cannot write .*metrics.jsonl: Is a directory; .* --resume"):
        log.write(record(1))


def test_missing_tensorboard_names_the_extra(monkeypatch):
    real = builtins.__import__

    def without(name, *arguments, **options):
        if "tensorboard" in name:
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ArgumentError, match=r"tensorboard: .* pip install tensorboard"):
        import_tensorboard()


class Writer:
    def __init__(self):
        self.seen = {}

    def add_scalar(self, tag, scalar_value, global_step):
        self.seen[tag, global_step] = scalar_value

    def close(self):
        self.seen["closed", 0] = True


def test_tensorboard_and_callback_get_every_number_under_its_path(tmp_path):
    told = []
    log = MetricsLog(tmp_path, after_step=0, on_metrics=lambda step, numbers: told.append((step, numbers)))
    log.writer = writer = Writer()
    log.write(
        {"kind": "epoch", "step": 4, "loss": 1 / 3, "best": True, "held_out": {"label": "x", "at": 0.5}}
    )
    log.write({"kind": "test", "model": "best", "step": 9, "standard": 0.75})
    log.close()
    assert writer.seen == {
        ("step", 4): 4.0,
        ("loss", 4): 1 / 3,
        ("held_out/at", 4): 0.5,
        ("test/best/step", 9): 9.0,
        ("test/best/standard", 9): 0.75,
        ("closed", 0): True,
    }
    assert told == [
        (4, {"step": 4.0, "loss": 1 / 3, "held_out/at": 0.5}),
        (9, {"test/best/step": 9.0, "test/best/standard": 0.75}),
    ]


def test_environment_is_json_and_names_what_matters(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/lipcert", "train", "--data", "my images"])
    found = json.loads(json.dumps(environment(7)))
    assert found["command"] == "lipcert train --data 'my images'"
    assert found["resumed_from_step"] == 7
    assert all(found[key] for key in ("python", "torch", "lipcert", "cpu", "threads"))
