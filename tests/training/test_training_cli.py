import os
import re
import sys
from dataclasses import fields
from inspect import signature

import pytest
from PIL import Image

from lipcert.cli import app as app_module
from lipcert.cli import main
from lipcert.cli.train import collect_options, free_folder, train
from lipcert.errors import ArgumentError, BrokenCertificateError, DataError
from lipcert.runs.config import TrainConfig
from lipcert.training import devices, recipes
from lipcert.training.interruption import Interrupted
from lipcert.training.parts import load_split

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
    flags = set(signature(train).parameters) - {"out", "resume", "config", "recipe"}
    assert flags == {field.name for field in fields(TrainConfig)}


def test_help_has_examples_and_defaults(command):
    code, out, _ = command("train", "--help")
    assert code == 0
    for text in (
        "Examples",
        "lipcert train --out runs/paper --resume",
        "--weight-decay",
        "(by the recipe)",
        "(5000)",
    ):
        assert text in out


def test_run_prints_plain_lines_and_its_result(command, tmp_path):
    code, out, errors = command("train", *QUICK, "--out", tmp_path / "run")
    assert (code, errors) == (0, "")
    assert re.search(r"epoch 1  loss -?\d+\.\d{4}  held-out", out)
    assert "last model (epoch 1) on 360 test images" in out
    assert f"everything is in {tmp_path / 'run'}" in out
    code, _, errors = command("train", "--out", tmp_path / "run", "--resume", "--lr", "0.7")
    assert code == 2
    assert "lr: 0.3 -> 0.7 changed since the run" in errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--schedule", "cosin"], "onecycle, step, got 'cosin'; did you mean 'cosine'?"),
        (["--epochs", "0"], "epochs: expected a number in [1, 1e6], got 0"),
        (["--epochs", "2", "--minutes", "1"], "minutes: replaces --epochs; give only one of the two"),
        (["--augment", "crop-flip", "--crop", "8"], "crop: expected a padding below the side of the"),
        (["--resume"], "holds no run; start one without --resume"),
        (["--schedule", "step", "--warmup", "0.5"], "warmup: the schedule step has no warmup; use"),
        (["--optimizer", "sgd", "--muon-step", "0.1"], "muon_step: the optimizer sgd does not use it; use"),
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
    options, reason = collect_options(
        {"lr": 0.4}, out=tmp_path / "new", config=tmp_path / "config.toml", resume=False
    )
    assert (options.data, options.lr, options.epochs) == ("digits", 0.4, 7)
    assert "7 epochs" in reason
    again, reason = collect_options({}, out=tmp_path, config=None, resume=True)
    assert again == TrainConfig(data="digits", lr=0.2, epochs=7)
    assert reason == ""
    (tmp_path / "config.toml").write_text("minutes = 30\n")
    timed, _ = collect_options(
        {"epochs": 5}, out=tmp_path / "new", config=tmp_path / "config.toml", resume=False
    )
    assert (timed.epochs, timed.minutes) == (5, None)


def test_the_recipe_decides_what_is_not_given(tmp_path):
    def options(recipe="fast", **given):
        return collect_options(given, out=tmp_path / "new", config=None, resume=False, recipe=recipe)[0]

    fast = options()
    assert (fast.optimizer, fast.batch_size, fast.series, fast.head) == ("muon", 512, "wide", "orthogonal")
    assert options(data="cifar100").head == "lln"
    assert options(data="digits").batch_size == 64
    assert options(minutes=10.0).minutes == 10
    assert options(devices=3).batch_size == 513
    assert options(conv="cayley").series == TrainConfig.series
    assert options(optimizer="sgd").batch_size == 128
    assert options(crop=3).augment == "crop-flip"
    assert (fast.border, options("paper").border) == ("reflect", "black")
    assert options("paper") == TrainConfig(series="exponential")
    for wrong in ({"devices": 0}, {"nodes": 0}, {"batch_size": 0}):
        with pytest.raises(ArgumentError, match=r"expected a number in \[1, "):
            options(**wrong)
    assert options("paper", conv="bcop", depth=15) == TrainConfig(conv="bcop", depth=15)
    with pytest.raises(ArgumentError, match="recipe: expected one of fast, paper, got 'fest'; did you mean"):
        options("fest")


def test_a_recipe_looks_at_a_folder_as_training_reads_it(tmp_path):
    photos = tmp_path / "photos"
    for name, count in (("a", 3), ("b", 2)):
        (photos / name).mkdir(parents=True)
        for k in range(count):
            Image.new("RGB", (32, 32), (80 * k, 0, 0)).save(photos / name / f"{k}.png")
    (photos / "a" / "._0.png").write_bytes(b"")
    _, said = collect_options({"data": str(photos)}, out=tmp_path / "new", config=None, resume=False)
    assert said.startswith("for 5 pictures of 2 classes")
    with pytest.raises(ArgumentError, match="class 'b' has one image besides those for testing"):
        load_split(TrainConfig(data=str(photos), image_size=32))
    (photos / "empty").mkdir()
    with pytest.raises(DataError, match="empty: the class has no image"):
        collect_options({"data": str(photos)}, out=tmp_path / "new", config=None, resume=False)


@pytest.fixture
def photos(tmp_path):
    """A folder with 40 empty files in each of two classes."""
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(40):
            (tmp_path / "photos" / name / f"{number}.png").touch()
    return tmp_path / "photos"


def test_a_folder_of_photographs_starts_from_the_zoo(photos, tmp_path):
    given = {"data": str(photos)}
    options, reason = collect_options(given, out=tmp_path / "new", config=None, resume=False)
    assert (options.start_from, options.image_size, options.width) == ("lipconvnet5-cifar10", 32, 16)
    assert (options.batch_size, options.epochs, options.ema) == (16, 30, 0.9)
    assert (options.mirrored, options.eval_every) == (True, 5)
    for part in (
        "for 80 pictures of 2 classes",
        "network: the weights of lipconvnet5-cifar10, because it was trained on photographs",
        "pictures: cut to their centre square and resized to 32x32, as its own were; in training mirrored "
        "and shifted by up to 2 pixels",
        "length: 30 epochs of 3 steps",
        "certificates: of the mean over a picture and its mirror image (--no-mirrored: ",
    ):
        assert part in reason
    own, reason = collect_options(
        given | {"width": 4, "augment": "none"}, out=tmp_path / "new", config=None, resume=False
    )
    assert (own.start_from, own.image_size) == (None, 32)
    assert "a LipConvnet-5 of width 4 with random weights\n" in reason
    assert not own.mirrored
    assert "mirror" not in reason


def test_hidden_files_and_folders_are_no_pictures_to_a_recipe(photos):
    expected = recipes.apply_recipe("fast", {"data": str(photos)})
    (photos / ".thumbnails").mkdir()
    for folder in (".thumbnails", "cat", "dog"):
        for number in range(40):
            (photos / folder / f"._{number}.png").touch()
    assert recipes.apply_recipe("fast", {"data": str(photos)}) == expected


@pytest.mark.parametrize(("side", "start"), [(64, "lipconvnet5-cifar10"), (48, None)])
def test_larger_pictures_start_from_the_zoo_where_its_layers_fit(photos, tmp_path, side, start):
    given = {"data": str(photos), "image_size": side}
    options, reason = collect_options(given, out=tmp_path / "new", config=None, resume=False)
    assert (options.start_from, options.image_size) == (start, side)
    assert f"resized to {side}x{side}" in reason
    assert ("takes only multiples of 32 pixels" in reason) == (start is None)


@pytest.mark.parametrize(("pictures", "batch_size", "epochs"), [(600, 64, 30), (60_000, 512, 18)])
def test_more_pictures_make_larger_batches_and_fewer_passes(
    photos, monkeypatch, pictures, batch_size, epochs
):
    known = recipes._Images(int(0.72 * pictures), pictures, 10, True)
    monkeypatch.setattr(recipes, "_look_at", lambda data, held_out: known)
    options = recipes.apply_recipe("fast", {"data": str(photos)}).options
    assert (options["batch_size"], options["epochs"]) == (batch_size, epochs)


@pytest.mark.parametrize("recipe", ["fast", "paper"])
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("phx", "data: no folder 'phx' is here and no dataset has that name; expected a folder of images, "),
        ("photo", "cifar100 or digits; did you mean 'photos'?"),
        ("digts", "cifar100 or digits; did you mean 'digits'?"),
        ("./photo", "photo: no such folder; expected a folder of images in one subfolder per class; did you "
         "mean './photos'?"),
        ("none/photo", "none/photo: no such folder; expected a folder of images in one subfolder per class"),
    ],
)  # fmt: skip
def test_data_that_are_not_there_are_told_before_the_recipe(
    photos, command, monkeypatch, recipe, data, expected
):
    monkeypatch.chdir(photos.parent)
    code, printed, errors = command("train", "--data", data, "--recipe", recipe)
    assert (code, printed) == (2, "")
    assert expected in errors
    assert not (photos.parent / "runs").exists()


def test_a_run_without_a_folder_gets_one_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert str(free_folder("cifar10")) == "runs/cifar10"
    (tmp_path / "runs" / "photos").mkdir(parents=True)
    assert str(free_folder("some/photos")) == "runs/photos-2"


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
