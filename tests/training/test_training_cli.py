import os
import re
import sys
from dataclasses import fields
from inspect import signature

import pytest

from lipcert.cli import app as app_module
from lipcert.cli import main
from lipcert.cli.train import collect_options, train
from lipcert.errors import ArgumentError, BrokenCertificateError
from lipcert.training import devices
from lipcert.training.config import TrainConfig
from lipcert.training.interruption import Interrupted

QUICK = ["--data", "digits", "--width", "2", "--epochs", "1", "--batch-size", "512", "--threads", "1"]


@pytest.fixture
def command(monkeypatch, capsys):
    """Run the command line in this process; returns exit code, output and errors."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["lipcert", *map(str, arguments)])
        code = main()
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_every_option_of_a_run_is_a_flag_and_nothing_else_is():
    flags = set(signature(train).parameters) - {"out", "resume", "config"}
    assert flags == {field.name for field in fields(TrainConfig)}


def test_help_has_examples_and_defaults(command):
    code, out, _ = command("train", "--help")
    assert code == 0
    for text in ("Examples", "lipcert train --out runs/paper --resume", "--weight-decay", "(200)"):
        assert text in out


def test_run_prints_plain_lines_and_its_result(command, tmp_path):
    code, out, errors = command("train", *QUICK, "--out", tmp_path / "run")
    assert (code, errors) == (0, "")
    assert re.search(r"epoch 1  loss -?\d+\.\d{4}  held-out", out)
    assert "last model (epoch 1) on 360 test images" in out
    assert f"everything is in {tmp_path / 'run'}" in out
    code, _, errors = command("train", "--out", tmp_path / "run", "--resume", "--lr", "0.7")
    assert code == 2
    assert "lr: 0.1 -> 0.7 changed since the run" in errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--schedule", "cosin"], "onecycle, step, got 'cosin'; did you mean 'cosine'?"),
        (["--epochs", "0"], "epochs: expected a number at least 1, got 0"),
        (["--epochs", "2", "--minutes", "1"], "minutes: takes the place of --epochs; give one of the two"),
        (["--augment", "crop-flip", "--crop", "8"], "crop: expected a padding below the side of the"),
        (["--resume"], "holds no run; start one without --resume"),
        (["--warmup", "0.5"], "warmup: the schedule step has none; use onecycle or cosine, or leave it out"),
        (["--muon-step", "0.1"], "muon_step: the optimizer sgd has none; use --optimizer muon, or leave"),
        (["--nodes", "2"], "nodes: nobody has started the processes of 2 machines; start them by torchrun"),
        (["--config", "absent.toml"], "config: cannot read absent.toml"),
        (["--epochs", "many"], "Invalid value for '--epochs'"),
        (["--no-such-flag"], "--no-such-flag"),
    ],
)  # fmt: skip
def test_bad_input_is_exit_2_and_one_sentence(command, tmp_path, arguments, message):
    code, _, errors = command("train", "--data", "digits", "--out", tmp_path / "run", *arguments)
    assert code == 2
    assert message in errors
    assert "Traceback" not in errors
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("place", [0, 1, 3])
def test_debug_shows_the_error_itself_wherever_the_flag_stands(command, tmp_path, place):
    arguments = ["train", "--out", tmp_path / "run", "--epochs", "0"]
    arguments.insert(place, "--debug")
    with pytest.raises(ArgumentError, match="epochs"):
        command(*arguments)


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (Interrupted("interrupted; step 3 is saved"), 130, "interrupted; step 3 is saved"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (BrokenCertificateError("image 3 is broken"), 1, "image 3 is broken"),
        (ArgumentError("lr: [not markup]"), 2, "lr: [not markup]"),
        (OSError(28, "No space left on device"), 2, "No space left on device"),
        (OSError(13, "Permission denied", "a/file"), 2, "a/file: Permission denied"),
    ],
)
def test_exit_codes(command, monkeypatch, error, code, message):
    def fail():
        raise error

    monkeypatch.setattr(app_module.app.registered_commands[0], "callback", fail)
    found, _, errors = command(app_module.app.registered_commands[0].name)
    assert (found, errors.strip()) == (code, message)


def test_given_options_win_over_the_file_and_the_file_over_the_defaults(tmp_path):
    (tmp_path / "config.toml").write_text('data = "digits"\nlr = 0.2\nepochs = 7\n')
    options = collect_options(
        {"lr": 0.4}, out=tmp_path / "new", config=tmp_path / "config.toml", resume=False
    )
    assert options == TrainConfig(data="digits", lr=0.4, epochs=7)
    assert collect_options({}, out=tmp_path, config=None, resume=True).epochs == 7
    assert collect_options({}, out=tmp_path, config=None, resume=False) == TrainConfig()
    (tmp_path / "config.toml").write_text("minutes = 30\n")
    timed = collect_options(
        {"epochs": 5}, out=tmp_path / "new", config=tmp_path / "config.toml", resume=False
    )
    assert (timed.epochs, timed.minutes) == (5, None)


@pytest.mark.parametrize(
    ("variables", "launcher"),
    [
        ({"TORCHELASTIC_RUN_ID": "1", "WORLD_SIZE": "4"}, "torchrun"),
        ({"SLURM_STEP_ID": "0", "SLURM_NTASKS": "4"}, "SLURM's srun"),
    ],
)
def test_number_of_processes_must_be_the_launchers(command, tmp_path, monkeypatch, variables, launcher):
    for name, value in variables.items():
        monkeypatch.setitem(os.environ, name, value)
    code, _, errors = command("train", *QUICK, "--devices", "2", "--out", tmp_path / "run")
    assert code == 2
    assert f"devices: {launcher} started 4 processes, but devices x nodes is 2" in errors


def test_buffers_are_left_alone_under_the_name_that_this_torch_knows():
    ((name, value),) = devices._leave_buffers_alone().items()
    assert name in ("forward_sync_buffers", "broadcast_buffers")
    assert value is False
