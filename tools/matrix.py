"""Test the ends of the version ranges that pyproject.toml promises, each in an environment of its own.

    python -m tools.matrix [oldest] [newest] [--folder .matrix] [-- PYTEST ARGUMENTS]

`oldest` has the lowest version of every dependency, `newest` the highest that there is. Between them, with
the oldest Python, lie the versions of constraints.txt, which continuous integration tests. An environment
that is there is used again; remove its folder to have it made again. Run it before a release: each takes some
gigabytes, because most versions of torch are built for CUDA alone. It ends with rows for the table in
docs/dependencies.md.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from shutil import which
from xml.etree import ElementTree

from packaging.requirements import Requirement

from tools.check_wheel import ROOT, new_environment, run
from tools.dependencies import declared

PYTHONS = {"oldest": "3.12", "newest": "3.13"}
"""The environments; Python 3.11 is that of continuous integration."""
WARNINGS = {
    "oldest": ("-W", "ignore::DeprecationWarning", "-W", "ignore::FutureWarning"),
    "newest": ("-W", "ignore:Guards may run slower on Python 3.13.0:RuntimeWarning"),
}
"""Old packages use what newer ones have deprecated; with the newest, every warning is an error but for that
of torch.compile about the first release of Python 3.13.
"""
SHOWN = ("torch", "numpy", "scikit-learn")
"""Dependencies that the table in docs/dependencies.md names."""
TOOLS = ("pytest", "pytest-timeout", "hypothesis", "scipy")
PARTS = (
    "tests/contracts/test_contract.py",
    "tests/nn",
    "tests/models",
    "tests/certify/test_prove.py",
    "tests/certify/test_prove_file.py",
    "tests/optim",
    "tests/training/test_losses.py",
    "tests/training/test_training_loop.py",
    "tests/test_estimator.py",
    "tests/data",
    "tests/test_pictures.py",
    "tests/report",
    "tests/cli/test_app.py",
    "tests/cli/test_demo.py",
    "tests/cli/test_selftest.py",
)
"""Tests that call every dependency: layers, proofs, training, scikit-learn, pictures, plots, command line."""
MORE = {"oldest": (), "newest": ("tests/devices",)}
"""Fake CUDA tensors are a part of torch that changes fast."""


def requirements(environment: str) -> list[str]:
    """What pip is asked for: the lowest version of each range, or the highest.

    >>> requirements("newest")[0]
    'torch'
    >>> requirements("oldest")[0].startswith("torch==2.")
    True
    """
    needed = declared()[""]
    if environment == "newest":
        return [requirement.name for requirement in needed]
    return [f"{requirement.name}=={lowest(requirement)}" for requirement in needed]


def lowest(requirement: Requirement) -> str:
    """The version after the >= of a requirement."""
    (version,) = (part.version for part in requirement.specifier if part.operator == ">=")
    return version


def interpreter(version: str) -> str:
    """A Python of that version: on the path, or one of pyenv's."""
    pyenv = sorted((Path.home() / ".pyenv/versions").glob(f"{version}.*/bin/python"))
    for candidate in [which(f"python{version}"), *map(str, reversed(pyenv))]:
        if candidate is None:
            continue
        told = subprocess.run([candidate, "--version"], capture_output=True, text=True, check=False)
        if told.stdout.startswith(f"Python {version}."):
            return candidate
    sys.exit(f"Python {version} is not on the path; install it, or run the other environment alone")


def prepare(environment: str, folder: Path) -> Path:
    """The interpreter of the environment, made if it is not there; the package is installed again."""
    python, done = folder / "bin" / "python", folder / ".installed"
    if not done.is_file():
        new_environment(folder, interpreter(PYTHONS[environment]))
        run(python, "-m", "pip", "install", "--quiet", *requirements(environment), *TOOLS)
        done.touch()
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--force-reinstall", ROOT)
    return python


def versions(python: Path) -> dict[str, str]:
    """Python and the dependencies that are installed there; of torch also what it is built for."""
    names = [requirement.name for requirement in declared()[""]]
    code = (
        "import json, platform, torch; from importlib.metadata import version as v; "
        f"print(json.dumps({{'Python': platform.python_version()}} | {{n: v(n) for n in {names}}} "
        "| {'torch': torch.__version__}))"
    )
    told = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT.parent)
    found: dict[str, str] = json.loads(told.stdout)
    return found


def row(environment: str, found: dict[str, str], report: Path) -> str:
    """The row of the table in docs/dependencies.md, with what pytest counted."""
    counts = ElementTree.parse(report).getroot()[0].attrib
    tests, skipped = int(counts["tests"]), int(counts["skipped"])
    shown = [found[name] for name in ("Python", *SHOWN)]
    day = counts["timestamp"].partition("T")[0]
    return f"| {' | '.join([environment, *shown, str(tests - skipped), str(skipped), day])} |"


def main() -> None:
    """Make each environment, run the tests there, and say which versions passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("environments", nargs="*", choices=[*PYTHONS, []], default=[*PYTHONS])
    parser.add_argument("--folder", type=Path, default=ROOT / ".matrix", help="where environments are kept")
    own, tests = sys.argv[1:], []
    if "--" in own:
        place = own.index("--")
        own, tests = own[:place], own[place + 1 :]
    arguments = parser.parse_args(own)
    rows = []
    for environment in arguments.environments:
        folder = arguments.folder.resolve() / environment
        python, report = prepare(environment, folder), folder / "tests.xml"
        found = versions(python)
        print(*(f"{name} {version}" for name, version in found.items()), sep=", ", flush=True)
        options = (f"--junit-xml={report}", *WARNINGS[environment], *(tests or (*PARTS, *MORE[environment])))
        run(python, "-m", "pytest", *options, shown=True)
        rows.append(row(environment, found, report))
    print(*rows, sep="\n")


if __name__ == "__main__":
    main()
