"""The public names: all there, loaded on first use, and the same in the three places that list them."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import lipcert as lc

DESIGNED = [
    *("SOC", "BCOP", "Cayley", "LOT", "BRO", "AOC", "AOCTranspose2d"),
    *("OrthogonalLinear", "NormalizedLinear", "Normalize"),
    *("MaxMin", "GroupSort", "Householder", "HouseholderOrder", "HouseholderChain", "HouseholderND"),
    *("lipconvnet", "CertificateLoss", "certify", "certified_accuracy", "radius_from_l1"),
    *("prove", "ProvedNetwork", "lipschitz_estimate", "load", "save", "freeze"),
]


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    ).stdout.strip()


@pytest.mark.parametrize("name", lc.__all__)
def test_every_name_exists(name: str) -> None:
    assert getattr(lc, name) is not None
    assert name in dir(lc)


@pytest.mark.parametrize("name", DESIGNED)
def test_the_designed_names_are_public(name: str) -> None:
    assert name in lc.__all__
    assert callable(getattr(lc, name))


def test_type_checkers_see_what_is_there() -> None:
    tree = ast.parse(Path(lc.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    homes = {alias.name: n.module for n in block.body if isinstance(n, ast.ImportFrom) for alias in n.names}
    packages = {name for name, home in homes.items() if home == "lipcert"}
    assert packages == set(lc._PACKAGES) - {"certify"}
    assert set(homes) - packages == set(lc.__all__) - {"__version__"}
    for name, home in lc._HOMES.items():
        assert homes[name] == f"lipcert.{home}"


def test_importing_lipcert_does_not_import_torch() -> None:
    assert run("import sys, lipcert; print('torch' in sys.modules, 'numpy' in sys.modules)") == "False False"


def test_packages_are_reachable() -> None:
    assert lc.nn.SOC is lc.SOC
    assert lc.errors.LipcertError.__module__ == "lipcert.errors"


@pytest.mark.parametrize(
    "first",
    [
        "lc.certified_accuracy",
        pytest.param("lc.certify", marks=pytest.mark.slow),
        pytest.param("import lipcert.certify.prove", marks=pytest.mark.slow),
        pytest.param("from lipcert.certify import curve", marks=pytest.mark.slow),
    ],
)
def test_certify_is_a_function_whatever_was_imported_first(first: str) -> None:
    code = f"import lipcert as lc; {first}; print(callable(lc.certify), lc.certify.network.__name__)"
    assert run(code) == "True lipcert.certify.network"


def test_certify_shows_its_arguments() -> None:
    assert list(inspect.signature(lc.certify).parameters)[:2] == ["model", "images"]


def test_unknown_names() -> None:
    with pytest.raises(AttributeError, match="module 'lipcert' has no attribute 'certifi'"):
        lc.certifi  # noqa: B018


def test_version() -> None:
    from importlib.metadata import version

    assert lc.__version__ == version("lipcert")


@pytest.mark.slow
def test_importing_one_layer_fills_the_registries() -> None:
    out = run(
        "import lipcert as lc; lc.lipconvnet; from lipcert.nn import CONVOLUTIONS as c; print(*sorted(c))"
    )
    assert {"aoc", "bcop", "bro", "cayley", "lot", "soc"} <= set(out.split())
