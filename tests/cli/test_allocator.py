import sys

import pytest

from lipcert.cli.allocator import keep_freed_memory


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a setting of glibc")
def test_glibc_takes_the_advice() -> None:
    assert keep_freed_memory()


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not keep_freed_memory()
