"""One direction of dependence: reads every import in the package and fails on any arrow back."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import lipcert

ROOT = Path(lipcert.__file__).parent
ANYWHERE = {"cluster", "errors", "files", "machine", "ports", "schema", "zoo"}
# Each part may import the parts on lower levels; parts that share a level are strangers to each other.
LEVELS = [
    {"kernels", "proofs"},
    {"operators"},
    {"nn"},
    {"optim"},
    {"models"},
    {"certify"},
    {"pictures"},
    {"runs"},
    {"attacks", "training", "export"},
    {"paper", "report", "estimator"},
    {"explore", "serve"},
    {"cli"},
]
"""As drawn in docs/architecture.md."""
DATA_USERS = {"pictures", "attacks", "runs", "training", "paper", "report", "estimator", "explore", "cli"}
FILES = sorted(ROOT.rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """Dotted names that a file imports, also inside functions; what only type checkers see does not count."""
    tree = ast.parse(path.read_text())
    hidden = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in hidden:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide where an arrow points"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def part_of(name: str) -> str | None:
    """'lipcert.nn.soc.SOC' -> 'nn'; None for other packages."""
    pieces = name.split(".")
    return pieces[1] if pieces[0] == "lipcert" and len(pieces) > 1 else None


def level(part: str) -> int | None:
    return next((i for i, parts in enumerate(LEVELS) if part in parts), None)


def allowed(part: str, target: str) -> bool:
    if target == part or target in ANYWHERE:
        return True
    if target == "data":
        return part in DATA_USERS
    if part == "data" or target == "cli":
        return False
    here, there = level(part), level(target)
    return here is not None and there is not None and there < here


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_arrow_points_back(path: Path) -> None:
    relative = path.relative_to(ROOT)
    part = relative.parts[0].removesuffix(".py")
    if part in ("__init__", "__main__"):
        pytest.skip("the front doors: public names by table, and `python -m lipcert`")
    wrong = sorted({t for name in imports(path) if (t := part_of(name)) and not allowed(part, t)})
    assert not wrong, f"{relative} imports {', '.join(wrong)}: see docs/architecture.md"


def test_the_package_needs_no_tools() -> None:
    assert not [str(path) for path in FILES if any(name.split(".")[0] == "tools" for name in imports(path))]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_star_and_no_pickle(path: Path) -> None:
    text = path.read_text()
    assert not any(name.endswith(".*") for name in imports(path)), "star import"
    assert "torch.load(" not in text, "torch.load reads pickles"
    assert "pickle" not in {name.split(".")[0] for name in imports(path)} or "data" in path.parts


@pytest.mark.parametrize(
    ("part", "target", "expected"),
    [
        ("nn", "kernels", True),
        ("kernels", "nn", False),
        ("kernels", "proofs", False),
        ("proofs", "kernels", False),
        ("operators", "proofs", True),
        ("operators", "nn", False),
        ("nn", "operators", True),
        ("certify", "nn", True),
        ("runs", "models", True),
        ("certify", "runs", False),
        ("training", "runs", True),
        ("runs", "training", False),
        ("training", "attacks", False),
        ("models", "certify", False),
        ("data", "errors", True),
        ("data", "kernels", False),
        ("models", "data", False),
        ("training", "data", True),
        ("report", "cli", False),
        ("report", "explore", False),
        ("estimator", "training", True),
        ("training", "estimator", False),
        ("export", "certify", True),
        ("export", "training", False),
        ("explore", "report", True),
        ("serve", "pictures", True),
        ("serve", "explore", False),
        ("cli", "report", True),
    ],
)
def test_the_rule_itself(part: str, target: str, expected: bool) -> None:
    assert allowed(part, target) is expected
