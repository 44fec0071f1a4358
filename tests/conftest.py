"""What every test shares: seeded random numbers, Hypothesis without deadlines, global settings kept."""

import signal
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

settings.register_profile("lipcert", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("lipcert")


@pytest.fixture(autouse=True)
def _same_start() -> Iterator[None]:
    """Every test draws the same random numbers, alone or among others, and settings are kept."""
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    on_ctrl_c = signal.getsignal(signal.SIGINT)
    torch.manual_seed(0)
    yield
    assert torch.get_default_dtype() == dtype, "a test changed the default dtype"
    torch.set_num_threads(threads)  # `--threads` of the command line is for its whole process
    signal.signal(signal.SIGINT, on_ctrl_c)  # the command line ignores it once it was stopped
