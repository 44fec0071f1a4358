import itertools
import json
import os
import signal
from statistics import fmean
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from lipcert.certify.curve import RADII
from lipcert.certify.network_file import read_network
from lipcert.certify.prove import prove
from lipcert.certify.records import read_records
from lipcert.data.sources import load
from lipcert.errors import ArgumentError, CheckpointError, TrainingError
from lipcert.kernels.taps import kernel_from_taps, skew_taps
from lipcert.models.storage import load as load_model
from lipcert.nn.soc import SOC
from lipcert.optim import Muon
from lipcert.runs.checkpoint import CHECKPOINT, read_checkpoint
from lipcert.runs.config import TrainConfig
from lipcert.runs.metrics import read_metrics
from lipcert.runs.summary import RunSummary
from lipcert.training import loop, trainer
from lipcert.training.evaluation import proved_accuracy, selection_score
from lipcert.training.interruption import Interrupted
from lipcert.training.loop import train
from lipcert.training.losses import CertificateLoss
from lipcert.training.parts import build_model, load_split
from lipcert.training.progress import Silent

QUICK = TrainConfig(
    data="digits",
    width=2,
    epochs=3,
    batch_size=256,
    schedule="onecycle",
    lr=0.3,
    threads=1,
    checkpoint_every="2",
)  # 5 steps per epoch, 15 in all


def with_options(**changes):
    return TrainConfig.from_dict(QUICK.to_dict() | changes)


def weights(out, name="model.safetensors"):
    return load_file(out / name)


def assert_same_bits(mine, theirs):
    assert mine.keys() == theirs.keys()
    for name in mine:
        assert torch.equal(mine[name], theirs[name]), name


class StopAt(Silent):
    """Sends a signal during a step; the run ends when that step is done."""

    def __init__(self, step, number=signal.SIGINT):
        self.step, self.number = step, number
        self.said = []

    def begin(self, *, step, total_steps, steps_per_epoch, batch_size):
        self.signal_after(step)

    def advance(self, *, step, loss):
        self.signal_after(step)

    def signal_after(self, step):
        if step + 1 == self.step:
            os.kill(os.getpid(), self.number)

    def say(self, message):
        self.said.append(message)


def assert_proved_of(out, weights):
    """The proved file is of these weights, up to the rounding of another number of threads."""
    network = read_network(out / "best.proved.safetensors")
    assert read_records(out).header.network_sha256 == network.hash
    images = torch.rand(4, *network.input_shape, dtype=torch.float64)
    with torch.no_grad():
        expected = load_model(out / weights).double()(images)
    torch.testing.assert_close(network.logits(images), expected, rtol=0, atol=1e-9)


def test_a_mirrored_run_proves_the_mean_over_both_images(tmp_path):
    plain = with_options(epochs=1)
    train(plain, tmp_path)
    before = weights(tmp_path)
    train(with_options(epochs=1, mirrored=True), tmp_path, resume=True)
    assert_same_bits(weights(tmp_path), before)
    network, model = (
        read_network(tmp_path / "best.proved.safetensors"),
        load_model(tmp_path / "best.safetensors"),
    )
    assert network.name.endswith("mirrored")
    assert read_records(tmp_path).header.network_sha256 == network.hash
    images = torch.rand(4, *network.input_shape, dtype=torch.float64)
    with torch.no_grad():
        expected = (model.double()(images) + model(images.flip(3))) / 2
    torch.testing.assert_close(network.logits(images), expected, rtol=0, atol=1e-9)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """One run that nothing interrupts."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    return out, train(QUICK, out)


def test_run_leaves_everything_it_promises(whole):
    out, summary = whole
    assert {path.name for path in out.iterdir()} == {
        "config.toml", "environment.json", "metrics.jsonl", "summary.json", "model.safetensors",
        "best.safetensors", "checkpoint.safetensors", "checkpoint.previous.safetensors", "certificates.jsonl",
        "best.proved.safetensors",
    }  # fmt: skip
    assert TrainConfig.read(out / "config.toml") == QUICK
    assert RunSummary.read(out) == summary
    assert json.loads((out / "environment.json").read_text())["resumed_from_step"] is None
    assert (summary.steps, summary.epochs) == (15, 3.0)


def test_metrics_have_one_record_per_epoch_and_the_test_line_last(whole):
    out, summary = whole
    records = read_metrics(out)
    assert [(r["kind"], r["step"]) for r in records] == [
        ("epoch", 5), ("epoch", 10), ("epoch", 15), ("test", 15), ("test", summary.best["step"])
    ]  # fmt: skip
    for record in records[:3]:
        assert record["held_out"]["label"] == "held-out, estimate"
        assert record["images_per_second"] > 0
    # 15 steps: the rise takes round(1.5) = 2, the last step is the 13th of 13 downwards.
    assert records[2]["lr"] == pytest.approx(0.3 * (1 - 12 / 13))
    assert [r["model"] for r in records[3:]] == ["last", "best"]
    assert records[3]["images"] == 360


def test_training_learns(whole):
    _, summary = whole
    losses = [record["loss"] for record in read_metrics(whole[0])[:3]]
    assert losses == sorted(losses, reverse=True)
    assert summary.test["last"]["standard"] > 0.5  # chance is 0.1


def test_best_is_chosen_on_held_out_images_by_all_accuracies(whole, tmp_path, monkeypatch):
    out, summary = whole
    seen = {r["step"]: r["held_out"] for r in read_metrics(out)[:3]}
    means = {step: (h["standard"] + sum(h["certified"].values())) / 4 for step, h in seen.items()}
    assert means[summary.best["step"]] == max(means.values())
    assert summary.best["images"] == 143

    # The second is ahead at 36/255 and in standard accuracy alone, the third in the mean.
    shares = iter([(0.5, 0.4, 0.3, 0.2), (0.6, 0.5, 0.3, 0.2), (0.55, 0.45, 0.4, 0.3)])

    def measured(*_):
        standard, *certified = next(shares)
        shown = dict(zip(RADII, certified, strict=True))
        return {"label": "x", "images": 1, "standard": standard, "certified": shown}

    monkeypatch.setattr(trainer, "held_out_accuracy", measured)
    best = train(QUICK, tmp_path / "run").best
    assert best["step"] == 15
    assert best["selected_by"].startswith("the last model whose mean of standard and certified accuracies ")


def test_saved_models_load_and_are_those_of_the_summary(whole):
    from lipcert.data.sources import load
    from lipcert.training.evaluation import proved_accuracy

    out, summary = whole
    accuracy, _ = proved_accuracy(prove(load_model(out / "model.safetensors")), load("digits", split="test"))
    assert summary.test["last"] == {"step": 15, "epoch": 3.0} | accuracy


def test_a_finished_run_has_the_certificates_of_its_best_model(whole):
    out, summary = whole
    records = read_records(out)
    accuracy = records.outcomes.accuracy()
    assert len(records.outcomes) == summary.test["best"]["images"]
    assert accuracy.standard == summary.test["best"]["standard"]
    assert accuracy[36 / 255] == summary.test["best"]["certified"]["36/255"]
    assert records.network_file == out / "best.proved.safetensors"
    assert_proved_of(out, "best.safetensors")


def test_same_options_give_the_same_bits(whole, tmp_path):
    train(QUICK, tmp_path / "again")
    assert_same_bits(weights(whole[0]), weights(tmp_path / "again"))


def test_another_seed_gives_other_weights(whole, tmp_path):
    train(with_options(seed=1), tmp_path / "other")
    first, other = weights(whole[0]), weights(tmp_path / "other")
    assert any(not torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("step", [1, 5, 8, 14])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_is_saved_and_goes_on_to_the_same_bits(whole, tmp_path, step, number):
    out = tmp_path / "run"
    with pytest.raises(
        Interrupted, match=rf"step {step} of 15 is saved, go on with: lipcert train --out .*--resume"
    ):
        train(QUICK, out, progress=StopAt(step, number))
    checkpoint = read_checkpoint(out)
    assert checkpoint is not None
    assert checkpoint.position.step == step
    assert not (out / "summary.json").exists()
    summary = train(QUICK, out, resume=True)
    assert_same_bits(weights(whole[0]), weights(out))
    assert_same_bits(weights(whole[0], "best.safetensors"), weights(out, "best.safetensors"))
    assert summary.test == whole[1].test
    timeless = ("kind", "step", "epoch", "lr", "held_out", "best", "loss")
    mine, theirs = ([{k: r.get(k) for k in timeless} for r in read_metrics(path)] for path in (whole[0], out))
    assert mine == theirs
    environment = json.loads((out / "environment.json").read_text())
    assert environment["resumed_from_step"] == step
    assert environment["resumed_by"] == environment["command"]  # one process did both


AVERAGED = with_options(optimizer="muon", muon_step=0.05, batch_size=128, epochs=2, ema=0.9)  # 20 steps


@pytest.fixture(scope="module")
def averaged(tmp_path_factory):
    """A run of Muon that keeps an average of its weights."""
    out = tmp_path_factory.mktemp("runs") / "averaged"
    return out, train(AVERAGED, out)


@pytest.mark.parametrize("step", [1, 10, 13])
def test_a_run_of_muon_with_averaged_weights_goes_on_to_the_same_bits(averaged, tmp_path, step):
    with pytest.raises(Interrupted):
        train(AVERAGED, tmp_path, progress=StopAt(step))
    summary = train(AVERAGED, tmp_path, resume=True)
    assert_same_bits(weights(averaged[0]), weights(tmp_path))
    assert_same_bits(weights(averaged[0], "best.safetensors"), weights(tmp_path, "best.safetensors"))
    assert_same_bits(*(load_file(out / CHECKPOINT) for out in (averaged[0], tmp_path)))
    assert (summary.test, summary.best) == (averaged[1].test, averaged[1].best)


def test_muon_learns_more_than_sgd_in_the_same_steps(averaged, tmp_path):
    sgd = train(with_options(batch_size=128, epochs=2), tmp_path)
    assert averaged[1].test["last"]["standard"] > sgd.test["last"]["standard"] + 0.02


def test_muon_keeps_the_length_of_the_kernels(averaged):
    torch.manual_seed(AVERAGED.seed)
    start = build_model(AVERAGED, load_split(AVERAGED).images)
    end = load_model(averaged[0] / "model.safetensors")
    for before, after in zip(start.modules(), end.modules(), strict=True):
        if isinstance(before, SOC):
            assert torch.equal(after.weight[0], -after.weight[0].T)
            mine, theirs = (kernel_from_taps(skew_taps(layer.weight.detach())) for layer in (after, before))
            torch.testing.assert_close(mine.norm(), theirs.norm(), rtol=1e-5, atol=0)
            assert not torch.equal(mine, theirs)


def test_the_schedule_scales_the_step_of_muon_and_the_learning_rate_of_sgd(tmp_path, monkeypatch):
    seen, real = [], Muon.step

    def step(self, closure=None):
        seen.append({group["layout"]: group["lr"] for group in self.param_groups})
        return real(self, closure)

    monkeypatch.setattr(Muon, "step", step)
    train(with_options(optimizer="muon", muon_step=0.06, lr=0.3, epochs=1), tmp_path)
    # 5 steps: the rise takes round(0.5) = 0, so the share falls from 1 by a fifth each time.
    assert [rates["taps"] for rates in seen] == pytest.approx([0.06, 0.048, 0.036, 0.024, 0.012])
    assert [rates[None] for rates in seen] == pytest.approx([0.3, 0.24, 0.18, 0.12, 0.06])
    assert read_metrics(tmp_path)[0]["lr"] == pytest.approx(0.06)


def test_both_models_are_measured_and_recorded(averaged):
    out, summary = averaged
    records = [r for r in read_metrics(out) if r["kind"] == "epoch"]
    scores = {}
    for record in records:
        found = {"raw": record["held_out"], "average": record["held_out_average"]}
        ranks = {n: (selection_score(found[n]), found[n]["mean_radius"]) for n in found}
        assert record["better"] == max(ranks, key=lambda name: ranks[name])
        scores |= {(record["step"], name): selection_score(found[name]) for name in found}
    step, highest = 0, 0.0
    for record in records:
        score = scores[record["step"], record["better"]]
        highest = max(highest, score)
        images = record["held_out"]["images"]
        step = record["step"] if score >= highest - (highest * (1 - highest) / images) ** 0.5 else step
    assert (summary.best["step"], summary.best["highest_score"]) == (step, highest)
    assert summary.held_out == records[-1]["held_out"]


def test_the_average_follows_every_step(tmp_path):
    seen = []

    class Watch(Silent):
        def advance(self, *, step, loss):
            seen.append(read_checkpoint(tmp_path))

    train(with_options(ema=0.5, epochs=1, checkpoint_every="1"), tmp_path, progress=Watch())
    states = [c.tensors for c in (*seen[1:], read_checkpoint(tmp_path))]  # after steps 1, ..., 5
    name = "head.bias"
    for step, (before, after) in enumerate(itertools.pairwise(states), 2):
        decay = min(0.5, step / (step + 9))
        expected = decay * before[f"average.{name}"] + (1 - decay) * after[f"model.{name}"]
        torch.testing.assert_close(after[f"average.{name}"], expected)


@pytest.mark.parametrize("chosen", ["raw", "average"])
def test_the_better_of_model_and_average_is_the_best(tmp_path, monkeypatch, chosen):
    shares = itertools.cycle([0.5, 0.4] if chosen == "raw" else [0.4, 0.5])

    def measured(*_):
        share = next(shares)
        return {"label": "x", "images": 1, "standard": share, "certified": dict.fromkeys(RADII, share)}

    monkeypatch.setattr(trainer, "held_out_accuracy", measured)
    progress = StopAt(-1)
    summary = train(with_options(ema=0.5, epochs=1), tmp_path, progress=progress)
    assert (summary.best["step"], summary.best["weights"], summary.best["standard"]) == (5, chosen, 0.5)
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint is not None
    prefix = "model" if chosen == "raw" else "average"
    best = weights(tmp_path, "best.safetensors")
    assert torch.equal(best["head.weight"], checkpoint.tensors[f"{prefix}.head.weight"])
    assert torch.equal(weights(tmp_path)["head.weight"], checkpoint.tensors["model.head.weight"])
    # Of the same step, but only the raw model is the last one.
    same = summary.test["best"] == summary.test["last"]
    assert same is (chosen == "raw")
    images = load("digits", split="test")
    for name, file in (("best", "best.safetensors"), ("last", "model.safetensors")):
        accuracy, _ = proved_accuracy(prove(load_model(tmp_path / file)), images)
        assert summary.test[name] == {"step": 5, "epoch": 1.0} | accuracy
    lines = [line for line in progress.said if line.startswith("best model (epoch 1")]
    assert ("averaged weights" in lines[0]) is (chosen == "average")


def test_a_run_without_an_average_says_that_its_best_model_is_the_raw_one(whole):
    assert whole[1].best["weights"] == "raw"
    assert not any("average" in key for record in read_metrics(whole[0]) for key in record)
    assert not any(name.startswith("average.") for name in load_file(whole[0] / CHECKPOINT))


def test_the_command_that_made_a_run_outlives_its_resumption(tmp_path, monkeypatch):
    out = tmp_path / "run"
    monkeypatch.setattr("sys.argv", ["lipcert", "train", "--data", "digits", "--out", "run"])
    with pytest.raises(Interrupted):
        train(QUICK, out, progress=StopAt(3))
    monkeypatch.setattr("sys.argv", ["lipcert", "train", "--out", "run", "--resume"])
    train(QUICK, out, resume=True)
    environment = json.loads((out / "environment.json").read_text())
    assert environment["command"] == "lipcert train --data digits --out run"
    assert environment["resumed_by"] == "lipcert train --out run --resume"


def test_the_command_of_a_run_without_a_checkpoint_stays_too(tmp_path, monkeypatch):
    (tmp_path / "config.toml").write_text(QUICK.to_toml())
    (tmp_path / "environment.json").write_text(json.dumps({"command": "lipcert train --data digits"}))
    train(QUICK, tmp_path, resume=True)
    assert json.loads((tmp_path / "environment.json").read_text())["command"] == "lipcert train --data digits"


class StopInLastEvaluation(Silent):
    def __init__(self, number):
        self.number = number

    def evaluated(self, *, epoch, loss, standard, certified):
        if epoch == 3:
            os.kill(os.getpid(), self.number)


class StopWhileCertifying(StopInLastEvaluation):
    def evaluated(self, *, epoch, loss, standard, certified):
        pass

    def say(self, message):
        if message.startswith("certifying"):
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("stop", [StopInLastEvaluation, StopWhileCertifying])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_after_the_last_step_is_heard(whole, tmp_path, stop, number):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(Interrupted, match=r"all steps are done, go on with: lipcert train --out .*--resume"):
        train(QUICK, tmp_path, progress=stop(number))
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert not (tmp_path / "summary.json").exists()
    assert train(QUICK, tmp_path, resume=True).test == whole[1].test


def test_interruption_leaves_the_signal_handlers_as_they_were(tmp_path):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(Interrupted):
        train(QUICK, tmp_path / "run", progress=StopAt(3))
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_finished_run_can_be_resumed_and_only_says_its_result_again(whole, tmp_path):
    out = tmp_path / "run"
    train(QUICK, out)
    before = weights(out)
    summary = train(QUICK, out, resume=True)
    assert_same_bits(before, weights(out))
    assert summary.test == whole[1].test
    assert [r["kind"] for r in read_metrics(out)] == ["epoch"] * 3 + ["test"] * 2


def test_existing_run_is_not_overwritten(whole):
    with pytest.raises(ArgumentError, match="already holds a run; resume it, or choose another folder"):
        train(QUICK, whole[0])


def test_nothing_to_resume(tmp_path):
    with pytest.raises(CheckpointError, match=r"resume: .* holds no run; start one without --resume"):
        train(QUICK, tmp_path / "absent", resume=True)
    assert not (tmp_path / "absent").exists()


def test_run_killed_before_its_first_checkpoint_starts_again(whole, tmp_path):
    (tmp_path / "config.toml").write_text(QUICK.to_toml())
    train(QUICK, tmp_path, resume=True)
    assert_same_bits(weights(whole[0]), weights(tmp_path))


def test_changed_option_is_named_and_harms_nothing(tmp_path):
    with pytest.raises(Interrupted):
        train(QUICK, tmp_path, progress=StopAt(4))
    before = (tmp_path / CHECKPOINT).read_bytes()
    with pytest.raises(
        TrainingError, match=r"resume: lr: 0.3 -> 0.2; seed: 0 -> 3 changed since the run .* began"
    ):
        train(with_options(lr=0.2, seed=3), tmp_path, resume=True)
    assert (tmp_path / CHECKPOINT).read_bytes() == before


def test_checkpoint_of_another_run_is_refused(tmp_path):
    for name, config in (("a", QUICK), ("b", with_options(gamma=0.1))):
        with pytest.raises(Interrupted):
            train(config, tmp_path / name, progress=StopAt(4))
    os.replace(tmp_path / "b" / CHECKPOINT, tmp_path / "a" / CHECKPOINT)
    with pytest.raises(
        TrainingError, match=r"other options \(gamma: 0.1 -> 0.5\); it does not belong to this run"
    ):
        train(QUICK, tmp_path / "a", resume=True)


def test_changed_images_are_noticed(tmp_path, monkeypatch):
    with pytest.raises(Interrupted):
        train(QUICK, tmp_path, progress=StopAt(4))
    from lipcert.training import parts

    real = parts.load

    def tampered(*arguments, **options):
        dataset = real(*arguments, **options)
        dataset.images[0, 0, 0, 0] += 1
        return dataset

    monkeypatch.setattr(parts, "load", tampered)
    with pytest.raises(TrainingError, match="the images of digits are not those this run began with"):
        train(QUICK, tmp_path, resume=True)


def test_damaged_checkpoint_stops_the_resume(tmp_path):
    with pytest.raises(Interrupted):
        train(QUICK, tmp_path, progress=StopAt(1))
    (tmp_path / CHECKPOINT).write_bytes((tmp_path / CHECKPOINT).read_bytes()[:-10])
    with pytest.raises(CheckpointError, match="truncated or damaged"):
        train(QUICK, tmp_path, resume=True)


def poison(monkeypatch, at_call, value):
    """Make the loss of one step not finite."""
    real, calls = CertificateLoss.forward, []

    def loss(self, model, logits, labels, progress):
        calls.append(1)
        return real(self, model, logits, labels, progress) * (value if len(calls) == at_call else 1.0)

    monkeypatch.setattr(CertificateLoss, "forward", loss)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e6])
def test_loss_that_is_huge_or_not_finite_stops_the_run_and_keeps_the_last_good_state(
    whole, tmp_path, monkeypatch, value
):
    poison(monkeypatch, at_call=8, value=value)
    with pytest.raises(
        TrainingError,
        match=r"step 8: the loss is (-?nan|inf|\d+\.\d+); the last good .* is intact; try a smaller lr "
        r"\(it is 0.3\)",
    ):
        train(QUICK, tmp_path)
    monkeypatch.undo()
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint is not None
    assert checkpoint.position.step == 6
    train(QUICK, tmp_path, resume=True)
    assert_same_bits(weights(whole[0]), weights(tmp_path))


def test_full_disk_stops_the_run_and_it_goes_on_afterwards(whole, tmp_path, monkeypatch):
    real, calls = os.fsync, []

    def full(descriptor):
        calls.append(1)
        if len(calls) > 20:
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match="No space left on device"):
        train(QUICK, tmp_path)
    monkeypatch.undo()
    assert read_checkpoint(tmp_path) is not None
    train(QUICK, tmp_path, resume=True)
    assert_same_bits(weights(whole[0]), weights(tmp_path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": "cifar1"}, "did you mean 'cifar10"),
        ({"activation": "hh"}, "activation: expected one of"),
        ({"depth": 7}, "depth: expected a multiple of 5"),
        ({"batch_size": 4096}, "batch_size: .* 1294 images"),
    ],
)
def test_impossible_options_leave_no_folder(tmp_path, changes, message):
    with pytest.raises(ArgumentError, match=message):
        train(with_options(**changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_out_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match="out: expected a folder, got the file"):
        train(QUICK, tmp_path / "file")


def test_bf16_run_trains_and_resumes_to_the_same_bits(tmp_path):
    config = with_options(precision="bf16-mixed")
    train(config, tmp_path / "a")
    with pytest.raises(Interrupted):
        train(config, tmp_path / "b", progress=StopAt(7))
    train(config, tmp_path / "b", resume=True)
    assert_same_bits(weights(tmp_path / "a"), weights(tmp_path / "b"))
    assert all(value.dtype != torch.bfloat16 for value in weights(tmp_path / "a").values())


@pytest.mark.parametrize(("precision", "has_bf16", "said"), [
    ("bf16-mixed", False, True), ("bf16-mixed", True, False), ("fp32", False, False),
])  # fmt: skip
def test_bf16_without_instructions_is_said_to_be_slow(tmp_path, monkeypatch, precision, has_bf16, said):
    monkeypatch.setattr(loop, "has_bf16", lambda: has_bf16)
    progress = StopAt(1)
    with pytest.raises(Interrupted):
        train(with_options(precision=precision), tmp_path, progress=progress)
    assert any("no bf16 instructions: precision fp32" in message for message in progress.said) is said


@pytest.mark.parametrize("options", [{}, {"optimizer": "muon", "ema": 0.9}])
def test_time_budget_fixes_the_steps_once_and_resumes_to_the_same_bits(tmp_path, monkeypatch, options):
    config = with_options(minutes=0.03, epochs=1, **options)
    monkeypatch.setattr(trainer, "fitting_steps", lambda *_: 12)  # on any machine
    progress = StopAt(6)
    with pytest.raises(Interrupted):
        train(config, tmp_path, progress=progress)
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint is not None
    total = checkpoint.position.total_steps
    assert total == 12
    assert f"0.03 minutes: {total} steps" in progress.said[0]
    summary = train(config, tmp_path, resume=True)
    assert summary.steps == total
    # The measurement leaves no trace: the same number of steps without a budget ends in the same bits.
    monkeypatch.setattr(trainer.Trainer, "_fit_to_budget", lambda self, seconds: fix_steps(self, total))
    train(config, tmp_path / "plain")
    assert_same_bits(weights(tmp_path), weights(tmp_path / "plain"))
    assert_same_bits(*(load_file(out / CHECKPOINT) for out in (tmp_path, tmp_path / "plain")))


def fix_steps(trainer, total):
    from dataclasses import replace

    trainer.position = replace(trainer.position, total_steps=total)


def test_tensorboard_events_are_written(tmp_path):
    pytest.importorskip("tensorboard", reason="needs the extra 'log'")
    train(with_options(tensorboard=True, epochs=1), tmp_path)
    assert list((tmp_path / "tensorboard").glob("events.*"))


@pytest.mark.parametrize(
    ("images", "scores", "step"),
    [
        (1000, (0.5, 0.5, 0.5), 15),
        (1000, (0.5, 0.6, 0.59), 15),  # the standard error is 0.0155
        (1000, (0.5, 0.6, 0.58), 10),
        (1000, (0.6, 0.589, 0.578), 10),  # within it of the last one, but not of the highest
        (100, (0.6, 0.589, 0.578), 15),
        (1000, (1.0, 1.0, 0.999), 10),
    ],
)
def test_the_best_model_is_the_last_within_a_standard_error_of_the_highest(
    tmp_path, monkeypatch, images, scores, step
):
    found = iter(scores)

    def measured(*_):
        share = next(found)
        same = dict.fromkeys(RADII, share)
        return {"label": "x", "images": images, "standard": share, "certified": same}

    monkeypatch.setattr(trainer, "held_out_accuracy", measured)
    out = tmp_path / "run"
    best = train(with_options(), out).best
    assert (best["step"], best["highest_score"]) == (step, pytest.approx(max(scores)))
    assert [r["step"] for r in read_metrics(out) if r.get("best")][-1] == step
    if step == 15:
        assert_same_bits(weights(out, "best.safetensors"), weights(out))


def test_a_run_that_is_interrupted_at_a_tie_ends_with_the_same_best_model(tmp_path, monkeypatch):
    def measured(*_):
        return {"label": "x", "images": 1, "standard": 1.0, "certified": dict.fromkeys(RADII, 1.0)}

    monkeypatch.setattr(trainer, "held_out_accuracy", measured)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    best = train(with_options(), whole).best
    with pytest.raises(Interrupted):
        train(with_options(), killed, progress=StopAt(12))
    assert train(with_options(), killed, resume=True).best == best
    assert_same_bits(weights(killed, "best.safetensors"), weights(whole, "best.safetensors"))


class Losses(Silent):
    def __init__(self):
        self.seen = []

    def advance(self, *, step, loss):
        self.seen.append(loss)


def test_the_loss_of_an_epoch_is_the_mean_of_its_steps(tmp_path):
    heard = Losses()
    train(with_options(), tmp_path / "run", progress=heard)
    found = [record["loss"] for record in read_metrics(tmp_path / "run") if record["kind"] == "epoch"]
    assert found == pytest.approx([fmean(heard.seen[k : k + 5]) for k in (0, 5, 10)])


def test_time_before_an_interruption_counts(tmp_path):
    with pytest.raises(Interrupted):
        train(with_options(), tmp_path / "run", progress=StopAt(14))
    before = read_checkpoint(tmp_path / "run").position.elapsed
    assert train(with_options(), tmp_path / "run", resume=True).elapsed > before


class Watch(Silent):
    """Remembers how many threads the steps had."""

    def begin(self, *, step, total_steps, steps_per_epoch, batch_size):
        self.threads = torch.get_num_threads()


@pytest.mark.parametrize("variable", ["3", None])
def test_the_settings_of_the_process_are_as_before(tmp_path, monkeypatch, variable):
    torch.set_num_threads(2)
    monkeypatch.setenv("OMP_NUM_THREADS", variable or "")
    if variable is None:
        monkeypatch.delenv("OMP_NUM_THREADS")
    watch = Watch()
    train(with_options(epochs=1), tmp_path / "run", progress=watch)
    with pytest.raises(CheckpointError):
        train(QUICK, tmp_path / "absent", resume=True)
    assert watch.threads == 1
    assert torch.get_num_threads() == 2
    assert os.environ.get("OMP_NUM_THREADS") == variable


class Minutes(Silent):
    """Every step takes a minute of a clock that stands still otherwise."""

    now = 0.0

    def advance(self, *, step, loss):
        self.now += 60


def test_checkpoints_by_the_clock(tmp_path, monkeypatch):
    clock, saved, real = Minutes(), [], trainer.write_checkpoint
    monkeypatch.setattr(trainer, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(
        trainer, "write_checkpoint", lambda *a, **k: (saved.append(a[-1].step), real(*a, **k))
    )
    train(with_options(checkpoint_every="5m"), tmp_path / "run", progress=clock)
    assert saved == [6, 12, 15]  # five minutes after the last one, and at the end


def test_where_best_and_last_differ_each_has_its_own_numbers(tmp_path, monkeypatch):
    shares = iter([0.5, 0.25, 0.25])

    def falling(*_):
        share = next(shares)
        return {"label": "x", "images": 1000, "standard": share, "certified": dict.fromkeys(RADII, share)}

    monkeypatch.setattr(trainer, "held_out_accuracy", falling)
    summary = train(QUICK, tmp_path / "run")
    images = load("digits", split="test")
    for name, file, step in (("best", "best.safetensors", 5), ("last", "model.safetensors", 15)):
        accuracy, _ = proved_accuracy(prove(load_model(tmp_path / "run" / file)), images)
        assert summary.test[name] == {"step": step, "epoch": step / 5} | accuracy
    assert summary.test["best"]["standard"] != summary.test["last"]["standard"]
    records = read_records(tmp_path / "run")
    assert records.network_file == tmp_path / "run" / "best.proved.safetensors"
    assert_proved_of(tmp_path / "run", "best.safetensors")
    with pytest.raises(AssertionError):
        assert_proved_of(tmp_path / "run", "model.safetensors")
