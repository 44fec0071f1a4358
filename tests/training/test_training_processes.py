"""Runs in processes of their own: killed, doubled, started by torchrun and by SLURM's variables."""

import json
import os
import random
import signal
import socket
import subprocess
import sys

import pytest
from safetensors.torch import load_file

from lipcert.runs.config import TrainConfig

OPTIONS = [
    "--recipe", "paper", "--series", "isometric",
    "--data", "digits", "--width", "2", "--epochs", "3", "--schedule", "onecycle", "--lr", "0.3",
    "--nesterov", "--threads", "1",
]  # fmt: skip
STEPS = 30  # 10 per epoch of 1,294 images in batches of 128

KILL_IN_STEP = """
import os, signal, sys, torch
real, calls = torch.optim.SGD.step, []
def step(self, closure=None):
    calls.append(1)
    if len(calls) == {step}:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(self, closure)
torch.optim.SGD.step = step
from lipcert.cli import main
sys.exit(main())
"""

KILL_IN_WRITE = """
import os, signal, sys
real, calls = os.replace, []
def replace(source, target):
    if str(target).endswith("checkpoint.safetensors"):
        calls.append(1)
        if len(calls) == {write}:
            os.kill(os.getpid(), signal.SIGKILL)
    return real(source, target)
os.replace = replace
from lipcert.cli import main
sys.exit(main())
"""


def run(command, **environment):
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "TORCHELASTIC"))
    }
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=500, env=kept | environment
    )


def lipcert(*arguments):
    return run([sys.executable, "-m", "lipcert", "train", *map(str, arguments)])


def succeeded(done):
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    return done


def files(out):
    return {name: (out / name).read_bytes() for name in ("model.safetensors", "best.safetensors")}


def largest_difference(mine, theirs):
    mine, theirs = load_file(mine / "model.safetensors"), load_file(theirs / "model.safetensors")
    # The power-iteration vectors are known up to a sign and serve no evaluation.
    return max(
        (mine[k] - theirs[k]).abs().max().item() for k in mine if mine[k].numel() and "vector" not in k
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """One run in one process that nothing interrupts."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    succeeded(lipcert(*OPTIONS, "--out", out))
    return out


@pytest.mark.slow
@pytest.mark.parametrize("part", range(3))
def test_kill_9_at_a_random_step_resumes_to_the_same_bytes(whole, tmp_path, part):
    step = random.SystemRandom().randrange(part * STEPS // 3 + 1, (part + 1) * STEPS // 3 + 1)
    arguments = ["train", *OPTIONS, "--checkpoint-every", "4", "--out", str(tmp_path)]
    killed = run([sys.executable, "-c", KILL_IN_STEP.format(step=step), *arguments])
    assert killed.returncode == -signal.SIGKILL, (step, killed.stderr)
    succeeded(lipcert("--out", tmp_path, "--resume"))
    assert files(tmp_path) == files(whole), f"killed in step {step}"


@pytest.mark.slow
@pytest.mark.parametrize("write", [1, 2])
def test_kill_9_while_a_checkpoint_is_renamed_resumes_to_the_same_bytes(whole, tmp_path, write):
    arguments = ["train", *OPTIONS, "--checkpoint-every", "4", "--out", str(tmp_path)]
    killed = run([sys.executable, "-c", KILL_IN_WRITE.format(write=write), *arguments])
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (tmp_path / "checkpoint.previous.safetensors").exists() == (write == 2)
    succeeded(lipcert("--out", tmp_path, "--resume"))
    assert files(tmp_path) == files(whole)


@pytest.fixture(scope="module")
def doubled(tmp_path_factory):
    """The same run in two processes that share each batch."""
    out = tmp_path_factory.mktemp("runs") / "doubled"
    return out, succeeded(lipcert(*OPTIONS, "--devices", "2", "--out", out))


# Sums of 128 gradients in another order differ by sqrt(128) eps of their size. 30 steps of size 0.3 with
# momentum (a factor 10) carry that to 30 * 3 * 11 * 1.2e-7 = 1e-4 of gradients that are themselves below 1.
SAME = 1e-4


@pytest.mark.slow
def test_two_processes_equal_one_with_the_same_global_batch(tmp_path):
    # One epoch: the longer a run, the likelier some image comes to lie within rounding of a kink of an
    # activation, where gradients jump and the two runs part.
    one, two, other = (tmp_path / name for name in ("one", "two", "other"))
    options = [*OPTIONS, "--epochs", "1"]
    succeeded(lipcert(*options, "--out", one))
    done = succeeded(lipcert(*options, "--devices", "2", "--out", two))
    assert largest_difference(one, two) < SAME
    assert done.stdout.count("everything is in") == 1  # one process speaks
    alone, together = (json.loads((path / "summary.json").read_text()) for path in (one, two))
    assert together["steps"] == alone["steps"] == STEPS // 3
    radius, expected = (found["held_out"].pop("mean_radius") for found in (together, alone))
    assert abs(radius - expected) < SAME
    assert together["held_out"] == alone["held_out"]
    succeeded(lipcert(*options, "--seed", "1", "--out", other))
    assert largest_difference(one, other) > 100 * SAME


@pytest.mark.slow
def test_two_processes_equal_one_with_muon_and_an_average(tmp_path):
    options = [*OPTIONS, "--epochs", "1", "--optimizer", "muon", "--ema", "0.9"]
    succeeded(lipcert(*options, "--out", tmp_path / "one"))
    succeeded(lipcert(*options, "--devices", "2", "--out", tmp_path / "two"))
    # Orthogonalisation lifts small singular values by up to 3.4445^5 = 485, and rounding errors with them.
    assert largest_difference(tmp_path / "one", tmp_path / "two") < 100 * SAME
    succeeded(lipcert(*options, "--seed", "1", "--out", tmp_path / "other"))
    assert largest_difference(tmp_path / "one", tmp_path / "other") > 1000 * SAME


@pytest.mark.slow
def test_two_processes_resume_to_the_same_bytes(doubled, tmp_path):
    script, out = tmp_path / "script.py", tmp_path / "run"  # a file: the second process runs it too
    script.write_text(KILL_IN_WRITE.format(write=3))
    options = [*OPTIONS, "--devices", "2", "--checkpoint-every", "4", "--out", str(out)]
    killed = run([sys.executable, str(script), "train", *options])
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    succeeded(lipcert("--out", out, "--resume"))
    assert files(out) == files(doubled[0])


@pytest.mark.slow
def test_torchrun(doubled, tmp_path):
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = run([*launch, "-m", "lipcert", "train", *OPTIONS, "--devices", "2", "--out", str(tmp_path)])
    assert done.returncode == 0, done.stderr
    assert files(tmp_path) == files(doubled[0])


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@pytest.mark.slow
def test_slurm_variables_make_two_tasks_one_run(doubled, tmp_path):
    shared = {
        "SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "run", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2",
        "SLURM_NTASKS_PER_NODE": "2", "SLURM_NNODES": "1", "SLURM_NODEID": "0", "SLURM_NODELIST": "127.0.0.1",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
    }  # fmt: skip
    command = [sys.executable, "-m", "lipcert", "train", *OPTIONS, "--devices", "2", "--out", str(tmp_path)]
    tasks = [
        subprocess.Popen(
            command,
            env=os.environ | shared | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [task.communicate(timeout=500) for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0], outputs
    assert files(tmp_path) == files(doubled[0])


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_ctrl_c_saves_and_says_how_to_resume(tmp_path, devices):
    options = [*OPTIONS, "--epochs", "2000", "--devices", str(devices), "--out", str(tmp_path)]
    command = [sys.executable, "-m", "lipcert", "train", *options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            said = (process.stdout.readline() for _ in range(9))  # first what the recipe chose
            assert any("epoch 1 " in line for line in said)
            os.killpg(process.pid, signal.SIGINT)  # what a terminal does
            _, errors = process.communicate(timeout=200)
        finally:
            process.kill()
    assert process.returncode == 130, errors
    assert f"is saved, go on with: lipcert train --out {tmp_path} --resume" in errors
    assert "Traceback" not in errors
    assert (tmp_path / "checkpoint.safetensors").exists()


@pytest.mark.slow
@pytest.mark.cifar
@pytest.mark.timeout(3600)
def test_one_epoch_of_cifar10_passes_the_bar(tmp_path):
    if not os.environ.get("LIPCERT_DATA"):
        pytest.skip("LIPCERT_DATA is not set: no CIFAR images here")
    from lipcert.training.loop import train

    config = TrainConfig(
        data="cifar10", depth=5, width=16, epochs=1, schedule="onecycle", batch_size=64, lr=0.2,
        nesterov=True, precision="bf16-mixed",
    )  # fmt: skip
    result = train(config, tmp_path).test["last"]
    assert result["standard"] >= 0.40
    assert result["certified"]["36/255"] >= 0.20


def test_torch_is_not_needed_for_help():
    code = (
        "import sys\n"
        "from lipcert.cli import main\n"
        "sys.argv = ['lipcert', 'train', '--help']\n"
        "assert main() == 0\n"
        "assert 'torch' not in sys.modules, 'torch was imported'\n"
    )
    done = run([sys.executable, "-c", code])
    assert done.returncode == 0, done.stderr
    assert "--checkpoint-every" in done.stdout
