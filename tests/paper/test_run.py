"""Jobs: one per network and seed, skipped, resumed or refused; a stand-in for training writes the files."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lipcert.errors import ArgumentError, TrainingError
from lipcert.files import CONFIG, SUMMARY
from lipcert.paper.budget import Budget, budget_label, is_paper_budget, network_of
from lipcert.paper.run import plan
from lipcert.paper.tables import Network, networks, tables
from lipcert.runs.config import TrainConfig
from lipcert.runs.run import State
from lipcert.training.jobs import run_in_order
from lipcert.training.progress import Progress

NETWORK = Network("cifar10", 5, "soc", "hh1", "orthogonal", 0.5)
SMALL = Budget(epochs=2, width=4, schedule="onecycle", lr=0.3)


class StandIn:
    """Writes what the training loop leaves behind; stops early or fails for chosen seeds."""

    def __init__(self, *, killed: tuple[int, ...] = (), broken: tuple[int, ...] = ()) -> None:
        self.killed, self.broken = killed, broken
        self.calls: list[tuple[int, bool]] = []

    def __call__(
        self, config: TrainConfig, out: Path, *, resume: bool = False, progress: Progress | None = None
    ) -> None:
        self.calls.append((config.seed, resume))
        out.mkdir(parents=True, exist_ok=True)
        (out / CONFIG).write_text(config.to_toml())
        if config.seed in self.broken:
            raise TrainingError("the loss is not finite")
        if config.seed in self.killed and not resume:
            raise KeyboardInterrupt
        (out / SUMMARY).write_text("{}")


def test_every_distinct_network_is_one_job_per_seed(tmp_path: Path) -> None:
    main, shallow = tables()["cifar10-main"].select(["5"]), tables()["cifar10-shallow"].select(["5"])
    jobs = plan((row.network for row in (*main, *shallow)), Budget(), [0, 1], tmp_path)
    assert len(jobs) == 2 * 5  # MaxMin, HH, CR in both; BCOP and Cayley in the second
    assert len({job.out for job in jobs}) == len(jobs)


def test_all_of_the_paper_in_one_plan(tmp_path: Path) -> None:
    jobs = plan(networks(), Budget(), [0], tmp_path)
    assert len({job.out for job in jobs}) == len(jobs) == 132
    assert all(is_paper_budget(job.config) for job in jobs)


def test_done_rows_are_skipped_and_begun_rows_resumed(tmp_path: Path) -> None:
    jobs = plan([NETWORK], SMALL, [0, 1, 2], tmp_path)
    train = StandIn(killed=(1,))
    with pytest.raises(KeyboardInterrupt):
        run_in_order(jobs, train, say=lambda _: None)
    assert [job.state for job in jobs] == [State.DONE, State.BEGUN, State.NEW]
    said: list[str] = []
    assert run_in_order(jobs, train, say=said.append) == ()
    assert train.calls == [(0, False), (1, False), (1, True), (2, False)]
    assert [line.rsplit(": ")[-1] for line in said] == ["done before", "goes on", "begins"]


def test_a_run_goes_on_with_the_threads_it_began_with(tmp_path: Path) -> None:
    (job,) = plan([NETWORK], SMALL, [0], tmp_path)
    job.out.mkdir()
    (job.out / CONFIG).write_text(replace(job.config, threads=7).to_toml())
    run_in_order([job], StandIn(), say=lambda _: None)
    assert TrainConfig.read(job.out / CONFIG).threads == 7


def test_a_failed_row_does_not_stop_the_others(tmp_path: Path) -> None:
    jobs = plan([NETWORK], SMALL, [0, 1], tmp_path)
    (failure,) = run_in_order(jobs, StandIn(broken=(0,)), say=lambda _: None)
    assert (failure.job, failure.message) == (jobs[0], "the loss is not finite")
    assert jobs[1].state is State.DONE


def test_no_fault_of_one_row_stops_the_others(tmp_path: Path) -> None:
    jobs, working = plan([NETWORK], SMALL, [0, 1], tmp_path), StandIn()

    def train(config: TrainConfig, out: Path, **options: Any) -> Any:
        if config.seed == 0:
            raise RuntimeError("CUDA out of memory\nand more")
        return working(config, out, **options)

    (failure,) = run_in_order(jobs, train, say=lambda _: None)
    assert (failure.job, failure.message) == (jobs[0], "RuntimeError: CUDA out of memory")
    assert jobs[1].state is State.DONE


def test_a_folder_with_another_run_is_refused_before_anything_runs(tmp_path: Path) -> None:
    jobs = plan([NETWORK], SMALL, [0, 1], tmp_path)
    jobs[1].out.mkdir()
    (jobs[1].out / CONFIG).write_text(replace(jobs[1].config, lr=0.25).to_toml())
    train = StandIn()
    with pytest.raises(
        ArgumentError, match=r"holds a run with other options \(lr: 0.25 -> 0.3\); choose another"
    ):
        run_in_order(jobs, train, say=lambda _: None)
    assert train.calls == []


def test_the_default_budget_is_the_papers() -> None:
    config = Budget().config(NETWORK, seed=3)
    assert network_of(config) == NETWORK
    assert (config.epochs, config.width, config.lr, config.schedule) == (200, 32, 0.1, "step")
    assert (config.batch_size, config.momentum, config.nesterov, config.decay) == (128, 0.9, False, 5e-4)
    assert config.series == "exponential"
    assert is_paper_budget(config)
    assert budget_label(config) == "the paper's (200 epochs, width 32)"


@pytest.mark.parametrize("conv", ["soc", "bcop"])
def test_the_fast_recipe_decides_what_is_not_given(conv: str) -> None:
    network = replace(NETWORK, conv=conv)
    config = Budget(recipe="fast", epochs=12, width=8, muon_step=0.05).config(network, seed=3)
    assert network_of(config) == network
    assert (config.optimizer, config.batch_size, config.schedule, config.seed) == ("muon", 512, "onecycle", 3)
    assert (config.epochs, config.width, config.muon_step) == (12, 8, 0.05)
    assert config.series == ("wide" if conv == "soc" else TrainConfig.series)
    with pytest.raises(ArgumentError, match="recipe: expected one of fast, paper, got 'quick'"):
        Budget(recipe="quick")


@pytest.mark.parametrize(
    ("change", "label"),
    [
        ({"epochs": 5}, "5 epochs, width 32, step schedule"),
        ({"minutes": 30.0}, "30 minutes, width 32, step schedule"),
        ({"width": 16, "lr": 0.3}, "200 epochs, width 16, step schedule, lr 0.3"),
        ({"schedule": "onecycle", "nesterov": True}, "200 epochs, width 32, onecycle schedule, Nesterov"),
        ({"series": "isometric"}, "200 epochs, width 32, step schedule, isometric SOC"),
        ({"precision": "bf16-mixed"}, "200 epochs, width 32, step schedule, bf16-mixed"),
        ({"weight_decay": 0.0}, "200 epochs, width 32, step schedule, weight decay 0"),
        ({"offset": 0.5, "batch_size": 256}, "200 epochs, width 32, step schedule, batch 256, offset 0.5"),
        ({"optimizer": "muon"}, "200 epochs, width 32, step schedule, Muon step 0.04"),
        ({"ema": 0.998}, "200 epochs, width 32, step schedule, averaged by 0.998"),
        ({"crop": 0}, "200 epochs, width 32, step schedule, no crops"),
        ({"crop": 2}, "200 epochs, width 32, step schedule, crops padded by 2"),
        (
            {"augment": "none", "momentum": 0.8},
            "200 epochs, width 32, step schedule, momentum 0.8, augmentation none",
        ),
    ],
)
def test_any_other_budget_is_named(change: dict[str, object], label: str) -> None:
    config = TrainConfig.from_dict(Budget().config(NETWORK, seed=0).to_dict() | change)
    assert not is_paper_budget(config)
    assert budget_label(config) == label


def test_where_a_run_is_computed_is_not_its_budget() -> None:
    config = replace(Budget().config(NETWORK, seed=0), threads=2, devices=2, weight_decay=5e-4, eval_every=10)
    assert is_paper_budget(config)


def test_gamma_can_be_changed_in_the_rows_that_have_one() -> None:
    budget = Budget(gamma=0.1)
    assert budget.config(NETWORK, seed=0).gamma == 0.1
    assert budget.config(replace(NETWORK, gamma=0.0), seed=0).gamma == 0.0
    with pytest.raises(ArgumentError, match=r"gamma: expected a number above 0 .*, got 0\.0"):
        Budget(gamma=0.0).config(NETWORK, seed=0)
