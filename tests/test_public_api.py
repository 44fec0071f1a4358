"""The public names: all there, loaded on first use, and the same in the three places that list them."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast as hf

DESIGNED = [
    *("SOC", "BCOP", "Cayley", "OrthogonalLinear", "NormalizedLinear", "Normalize"),
    *("MaxMin", "GroupSort", "Householder", "HouseholderOrder", "HouseholderChain", "HouseholderND"),
    *("lipconvnet", "CertificateLoss", "certify", "certified_accuracy", "radius_from_l1"),
    *("lipschitz_upper_bound", "lipschitz_estimate", "load", "save", "freeze"),
]


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    ).stdout.strip()


@pytest.mark.parametrize("name", hf.__all__)
def test_every_name_exists(name: str) -> None:
    assert getattr(hf, name) is not None
    assert name in dir(hf)


@pytest.mark.parametrize("name", DESIGNED)
def test_the_designed_names_are_public(name: str) -> None:
    assert name in hf.__all__
    assert callable(getattr(hf, name))


def test_type_checkers_see_what_is_there() -> None:
    tree = ast.parse(Path(hf.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    homes = {alias.name: n.module for n in block.body if isinstance(n, ast.ImportFrom) for alias in n.names}
    packages = {name for name, home in homes.items() if home == "holdfast"}
    assert packages == set(hf._PACKAGES) - {"certify"}
    assert set(homes) - packages == set(hf.__all__) - {"__version__"}
    for name, home in hf._HOMES.items():
        assert homes[name] == f"holdfast.{home}"


def test_importing_holdfast_does_not_import_torch() -> None:
    assert run("import sys, holdfast; print('torch' in sys.modules, 'numpy' in sys.modules)") == "False False"


def test_packages_are_reachable() -> None:
    assert hf.nn.SOC is hf.SOC
    assert hf.errors.HoldfastError.__module__ == "holdfast.errors"


@pytest.mark.parametrize(
    "first",
    [
        "hf.certified_accuracy",
        pytest.param("hf.certify", marks=pytest.mark.slow),
        pytest.param("import holdfast.certify.radii", marks=pytest.mark.slow),
        pytest.param("from holdfast.certify import curve", marks=pytest.mark.slow),
    ],
)
def test_certify_is_a_function_whatever_was_imported_first(first: str) -> None:
    code = f"import holdfast as hf; {first}; print(callable(hf.certify), hf.certify.bounds.__name__)"
    assert run(code) == "True holdfast.certify.bounds"


def test_certify_shows_its_arguments() -> None:
    assert list(inspect.signature(hf.certify).parameters)[:2] == ["model", "images"]


def test_unknown_names() -> None:
    with pytest.raises(AttributeError, match="module 'holdfast' has no attribute 'certifi'"):
        hf.certifi  # noqa: B018


def test_version() -> None:
    from importlib.metadata import version

    assert hf.__version__ == version("holdfast")


@pytest.mark.slow
def test_importing_one_layer_fills_the_registries() -> None:
    out = run(
        "import holdfast as hf; hf.lipconvnet; from holdfast.nn import CONVOLUTIONS as c; print(*sorted(c))"
    )
    assert {"bcop", "cayley", "soc"} <= set(out.split())
