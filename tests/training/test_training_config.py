import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lipcert.errors import ArgumentError
from lipcert.runs.config import PANELS, Interval, TrainConfig, options

PAPER = {
    "epochs": 200, "batch_size": 128, "lr": 0.1, "momentum": 0.9, "nesterov": False, "schedule": "step",
    "held_out": 5000, "precision": "fp32", "optimizer": "sgd", "ema": 0.0,
}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), PAPER.items())
def test_default_is_the_papers(name, value):
    assert getattr(TrainConfig(), name) == value


@pytest.mark.parametrize(("conv", "decay"), [("soc", 5e-4), ("bcop", 0.0), ("cayley", 0.0)])
def test_weight_decay_follows_the_convolution(conv, decay):
    assert TrainConfig(conv=conv).decay == decay
    assert TrainConfig(conv=conv, weight_decay=0.25).decay == 0.25


configs = st.builds(
    TrainConfig,
    data=st.text(st.characters(codec="utf-8", exclude_categories=["Cs"])),
    image_size=st.none() | st.integers(1, 512),
    gamma=st.floats(0, 1e300),
    lr=st.floats(1e-300, 1e300, exclude_min=True),
    minutes=st.none() | st.floats(1e-9, 1e9),
    nesterov=st.booleans(),
    weight_decay=st.none() | st.floats(0, 1),
    schedule=st.sampled_from(["step", "onecycle", "cosine"]),
    warmup=st.floats(0, 1, exclude_max=True),
    seed=st.integers(0, 2**32 - 1),
    checkpoint_every=st.sampled_from(["1", "20s", "3m"]),
)


@settings(deadline=None, max_examples=150)
@given(configs)
def test_toml_gives_the_same_options_back(config):
    table = tomllib.loads(config.to_toml())
    assert TrainConfig.from_dict(table) == config
    assert table == config.to_dict()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, r"epochs: expected a number in \[1, 1e6\], got 0"),
        ({"epochs": 2.5}, "epochs: expected int, got 2.5"),
        ({"epochs": True}, "epochs: expected int, got True"),
        ({"lr": "fast"}, "lr: expected a number, got 'fast'"),
        ({"lr": 0}, r"lr: expected a number in \(0, inf\), got 0.0"),
        ({"lr": float("nan")}, "lr: expected a finite number, got nan"),
        ({"gamma": -0.5}, r"gamma: expected a number in \[0, inf\), got -0.5"),
        ({"minutes": -1}, r"minutes: expected a number in \(0, inf\), got -1.0"),
        ({"warmup": 1.0}, r"warmup: expected a number in \[0, 1\), got 1.0"),
        ({"momentum": 1.5}, r"momentum: expected a number in \[0, 1\), got 1.5"),
        ({"nesterov": True, "momentum": 0}, "nesterov: needs a momentum above 0"),
        ({"optimizer": "mun"}, "optimizer: expected one of muon, sgd, got 'mun'; did you mean 'muon'"),
        ({"muon_step": 0}, r"muon_step: expected a number in \(0, inf\), got 0.0"),
        ({"ema": 1.0}, r"ema: expected a number in \[0, 1\), got 1.0"),
        ({"image_size": "big"}, "image_size: expected int or nothing, got 'big'"),
        ({"seed": 2**32}, r"seed: expected a number in \[0, 4294967295\], got 4294967296"),
        ({"schedule": "onecyle"}, "schedule: expected one of .* did you mean 'onecycle'"),
        ({"precision": "bf16"}, "precision: expected one of .* did you mean 'bf16-mixed'"),
        ({"augment": "flip"}, "augment: expected one of .* did you mean 'crop-flip'"),
        ({"crop": -1}, r"crop: expected a number in \[0, 4096\], got -1"),
        ({"crop": 2, "augment": "none"}, "crop: cifar10 with augment 'none' has no crops"),
        ({"crop": 2, "data": "digits"}, "crop: digits with augment 'auto' has no crops"),
        ({"devices": 3}, "batch_size: expected a multiple of the 3 processes, got 128"),
        ({"checkpoint_every": "10h"}, "checkpoint_every: expected steps such as '500'.* got '10h'"),
        ({"checkpoint_every": "0"}, "checkpoint_every: .* got '0'"),
        ({"checkpoint_every": ""}, "checkpoint_every: .* got ''"),
        ({"width": 10**30}, "width: expected a finite number, got 1000"),
        ({"width": 10**9}, r"width: expected a number in \[1, 4096\], got 1000000000"),
        ({"checkpoint_every": "9" * 400 + "m"}, "checkpoint_every: expected steps"),
        ({"epoch": 3}, "option: expected one of .* got 'epoch'; did you mean 'epochs'"),
    ],
)
def test_bad_option_is_named(options, message):
    with pytest.raises(ArgumentError, match=message):
        TrainConfig.from_dict(options)


def test_unreadable_files_are_named(tmp_path):
    with pytest.raises(ArgumentError, match=r"config: cannot read .*absent.toml"):
        TrainConfig.read(tmp_path / "absent.toml")
    for number, text in enumerate([b"lr = ", b"\xff", b"lr = " + b"[" * 10**5]):
        (tmp_path / f"{number}.toml").write_bytes(text)
        with pytest.raises(ArgumentError, match=rf"{number}\.toml: expected TOML"):
            TrainConfig.read(tmp_path / f"{number}.toml")


@pytest.mark.parametrize(
    ("text", "interval"),
    [("7", Interval(steps=7)), ("45s", Interval(seconds=45)), ("2m", Interval(seconds=120))],
)
def test_interval(text, interval):
    assert Interval.parse(text) == interval


def test_only_what_decides_the_weights_counts_as_a_change():
    old = TrainConfig(checkpoint_every="5m", lr=0.1, seed=1)
    assert old.changes(TrainConfig(checkpoint_every="1m", mirrored=True, lr=0.1, seed=1)) == []
    assert old.changes(TrainConfig(lr=0.2, seed=2)) == ["lr: 0.1 -> 0.2", "seed: 1 -> 2"]


def test_every_option_is_documented():
    for name, (_, about) in options().items():
        assert about.help.endswith((".", "..")), name
        assert about.panel in PANELS, name


def test_how_often_is_evaluated_decides_which_model_is_best():
    assert TrainConfig().changes(TrainConfig(eval_every=2)) == ["eval_every: 1 -> 2"]
