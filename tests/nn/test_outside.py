"""Layers of installed packages: found by an entry point, imported at the first look-up."""

import subprocess
import sys
from pathlib import Path

import pytest

MODULE = """
import lipcert as lc


class SortFour(lc.LipschitzModule):
    def forward(self, x):
        return x.reshape(len(x), 4, -1, *x.shape[2:]).sort(dim=1, descending=True).values.reshape(x.shape)

    def freeze(self, input_shape):
        return lc.operators.GroupSort(4)


lc.register_activation("sort4", lambda channels: SortFour())
# All of lipcert may be used while the package is imported, registries included.
MODEL = lc.lipconvnet(5, activation="sort4", num_classes=3, width=4, image_size=4, in_channels=1)
PROVED = lc.prove(MODEL)
"""
BUILD = 'lc.lipconvnet(5, activation="sort4", num_classes=3, width=4, image_size=4, in_channels=1)'


def install(folder: Path, name: str, source: str) -> None:
    """What pip writes of a package: its module, and a dist-info folder with an entry point."""
    (folder / f"{name}.py").write_text(source)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[lipcert.layers]\n{name} = {name}\n")


def run(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    begin = f"import sys; sys.path.insert(0, {str(folder)!r}); "
    return subprocess.run(
        [sys.executable, "-c", begin + code], capture_output=True, text=True, check=True, timeout=300
    )


@pytest.mark.parametrize(
    "first",
    [
        "import lipcert as lc; lc.nn",
        "import fourlayers, lipcert as lc",
        "import lipcert as lc; import lipcert.certify.prove",
        "import lipcert as lc; from lipcert.nn import ACTIVATIONS; assert 'sort4' in ACTIVATIONS",
    ],
    ids=["layers", "package", "prove", "registry"],
)
def test_an_installed_layer_is_found_whatever_was_imported_first(tmp_path: Path, first: str) -> None:
    install(tmp_path, "fourlayers", MODULE)
    done = run(tmp_path, f"{first}; {BUILD}; import fourlayers; print(fourlayers.PROVED.input_shape)")
    assert (done.stdout.strip(), done.stderr) == ("(1, 4, 4)", "")


def test_importing_lipcert_imports_no_other_package(tmp_path: Path) -> None:
    install(tmp_path, "fourlayers", MODULE)
    code = "import lipcert as lc; lc.nn, lc.prove, lc.lipconvnet; print('fourlayers' in sys.modules)"
    assert run(tmp_path, code).stdout.strip() == "False"


def test_a_name_that_a_script_registers_first_stays_its_own(tmp_path: Path) -> None:
    install(tmp_path, "fourlayers", MODULE)
    code = "import lipcert as lc; mine = lambda channels: lc.GroupSort(4); "
    code += "lc.register_activation('sort4', mine); from lipcert.nn import ACTIVATIONS; "
    done = run(tmp_path, code + "print(ACTIVATIONS['sort4'] is mine, 'fourlayers' in sys.modules)")
    assert (done.stdout.strip(), done.stderr) == ("True True", "")


def test_a_package_that_fails_is_left_out_with_a_warning(tmp_path: Path) -> None:
    install(tmp_path, "broken", "raise RuntimeError('too old')")
    done = run(tmp_path, "from lipcert.nn import CONVOLUTIONS; print('soc' in CONVOLUTIONS)")
    assert done.stdout.strip() == "True"
    expected = (
        "the layers 'broken' of the package 'broken' cannot be loaded (RuntimeError: too old); update or"
    )
    assert expected in done.stderr
