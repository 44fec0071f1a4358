"""Test the ends of the version ranges that pyproject.toml promises, each in an environment of its own.

    python -m tools.matrix [oldest] [newest] [recipes] [--folder .matrix] [--list] [-- PYTEST ARGUMENTS]

`oldest` has the lowest version of every dependency, those of the extras included, `newest` the highest that
there is. Between them, with the oldest Python, lie the versions of constraints.txt, which continuous
integration tests. `recipes` has the packages that docs/recipes is about, beside the torch of constraints.txt,
and runs that folder. An environment that is there is used again; remove its folder to have it made again. Run
it before a release: each takes some gigabytes, because most versions of torch are built for CUDA alone. It
ends with rows for the table in docs/dependencies.md. `--list` only prints what would be installed and run.
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from shutil import which
from xml.etree import ElementTree

from packaging.requirements import Requirement

from tools.check_wheel import CONSTRAINTS, ROOT, new_environment, run
from tools.dependencies import declared

PYTHONS = {"oldest": "3.12", "newest": "3.13", "recipes": "3.11"}
"""The environments; Python 3.11 is that of continuous integration."""
WARNINGS = {
    "oldest": tuple(
        word
        for kind in ("DeprecationWarning", "PendingDeprecationWarning", "FutureWarning", "ResourceWarning")
        for word in ("-W", f"ignore::{kind}")
    ),
    "newest": ("-W", "ignore:Guards may run slower on Python 3.13.0:RuntimeWarning"),
    "recipes": (),
}
"""Old packages use what newer ones have deprecated, and old Ray leaves its files open; with the newest, every
warning is an error but for that of torch.compile about the first release of Python 3.13.
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
EXTRAS = ("audit", "cluster", "explore", "export", "log", "serve")
"""Extras of users, whose lowest versions are in the oldest environment too."""
OF_EXTRAS = (
    "tests/attacks",
    "tests/explore",
    "tests/export",
    "tests/serve",
    "tests/training/test_training_metrics.py",
)
RECIPES = (
    "lightning",
    "adversarial-robustness-toolbox",
    "mlflow",
    "wandb",
    "huggingface_hub",
    "foolbox",
    "onnx",
    "onnxruntime",
)
"""Packages of docs/recipes; its tests skip what is not installed."""
TESTS: dict[str, list[tuple[str, ...]]] = {
    "oldest": [(*PARTS, *OF_EXTRAS), ("-m", "slow", "tests/cli/test_certify_on_cluster.py")],
    # Fake CUDA tensors are a part of torch that changes fast.
    "newest": [(*PARTS, "tests/devices")],
    "recipes": [("-m", "slow", "-rs", "tests/test_recipes.py")],
}
"""Arguments of each call of pytest. Ray's tests are slow, and so are all recipes."""


def requirements(environment: str) -> list[str]:
    """What pip is asked for: the lowest version of each range, or the highest.

    >>> requirements("newest")[0]
    'torch'
    >>> requirements("oldest")[0].startswith("torch==2.")
    True
    >>> "mlflow" in requirements("recipes")
    True
    """
    groups = declared()
    if environment == "oldest":
        needed = [requirement for group in ("", *EXTRAS) for requirement in groups[group]]
        return [f"{requirement.name}=={lowest(requirement)}" for requirement in needed]
    names = [requirement.name for requirement in groups[""]]
    if environment == "newest":
        return names
    (torch,) = re.findall(r"^torch==\S+$", CONSTRAINTS.read_text(), re.MULTILINE)
    return [torch, *(name for name in names if name != "torch"), *RECIPES]


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


def row(environment: str, found: dict[str, str], reports: list[Path]) -> str:
    """The row of the table in docs/dependencies.md, with what pytest counted in all its calls."""
    counts = [ElementTree.parse(report).getroot()[0].attrib for report in reports]
    tests, skipped = (sum(int(count[name]) for count in counts) for name in ("tests", "skipped"))
    shown = [found[name] for name in ("Python", *SHOWN)]
    day = counts[-1]["timestamp"].partition("T")[0]
    return f"| {' | '.join([environment, *shown, str(tests - skipped), str(skipped), day])} |"


def listing(environment: str) -> str:
    """What the environment would hold, and the calls of pytest there."""
    packages = " ".join((*requirements(environment), *TOOLS))
    calls = [f"  pytest {' '.join(arguments)}" for arguments in TESTS[environment]]
    return "\n".join([f"{environment}: Python {PYTHONS[environment]}", f"  pip install {packages}", *calls])


def main() -> None:
    """Make each environment, run the tests there, and say which versions passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("environments", nargs="*", choices=[*PYTHONS, []], default=[])
    parser.add_argument("--folder", type=Path, default=ROOT / ".matrix", help="where environments are kept")
    parser.add_argument("--list", action="store_true", help="print what would be installed and run")
    own, tests = sys.argv[1:], []
    if "--" in own:
        place = own.index("--")
        own, tests = own[:place], own[place + 1 :]
    arguments = parser.parse_args(own)
    environments = arguments.environments or [*PYTHONS]
    if arguments.list:
        print(*map(listing, environments), sep="\n")
        return
    rows = []
    for environment in environments:
        folder = arguments.folder.resolve() / environment
        python, reports = prepare(environment, folder), []
        found = versions(python)
        print(*(f"{name} {version}" for name, version in found.items()), sep=", ", flush=True)
        for number, call in enumerate([tuple(tests)] if tests else TESTS[environment]):
            reports.append(folder / f"tests{number}.xml")
            run(
                python,
                "-m",
                "pytest",
                f"--junit-xml={reports[-1]}",
                *WARNINGS[environment],
                *call,
                shown=True,
            )
        rows.append(row(environment, found, reports))
    print(*rows, sep="\n")


if __name__ == "__main__":
    main()
