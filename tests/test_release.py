"""Versions, pinned tools, workflows and dependencies agree wherever they are repeated."""

import io
import re
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tools import check_wheel, dependencies, matrix

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))


def test_the_version_is_the_same_everywhere() -> None:
    (cited,) = re.findall(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    newest = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    assert cited == newest == PROJECT["version"]
    assert not re.search(r"__version__ *= *[\"']", (ROOT / "src/lipcert/__init__.py").read_text())


def test_commits_are_checked_by_the_tools_of_continuous_integration() -> None:
    config = (ROOT / ".pre-commit-config.yaml").read_text()
    assert set(re.findall(r"ruff==([\d.]+)", config)) == {PINS["ruff"]}
    assert "entry: .venv/bin/mypy\n" in config  # the environment of `make check`
    assert version("mypy") == PINS["mypy"]
    makefile = (ROOT / "Makefile").read_text()
    assert "$(BIN)/mypy\n" in makefile
    assert "$(BIN)/ruff format --check\n" in makefile


def test_workflows_run_what_is_run_here() -> None:
    folder = ROOT / ".github/workflows"
    assert "- run: .ci/run\n" in (folder / "ci.yml").read_text()
    text = (folder / "matrix.yml").read_text()
    (named,) = re.findall(r"environment: \[(.*)\]", text)
    assert named.split(", ") == list(matrix.PYTHONS)
    assert all(python in text for python in matrix.PYTHONS.values())
    assert "tools.matrix ${{ matrix.environment }}" in text
    assert "make wheel\n" in (ROOT / ".ci/run").read_text()


def test_promised_pythons_are_tested() -> None:
    promised = {c.rpartition(" ")[2] for c in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", c)}
    (ci,) = re.findall(r'python-version: "(.*?)"', (ROOT / ".github/workflows/ci.yml").read_text())
    assert promised == {ci, *matrix.PYTHONS.values()}
    first, last = sorted(promised, key=Version)[:: len(promised) - 1]
    major, minor = last.split(".")
    assert PROJECT["requires-python"] == f">={first},<{major}.{int(minor) + 1}"


PARTS = {part for calls in matrix.TESTS.values() for call in calls for part in call if "/" in part}


@pytest.mark.parametrize("part", sorted(PARTS))
def test_the_matrix_names_tests_that_exist(part: str) -> None:
    assert (ROOT / part).exists()


def test_the_oldest_environment_has_the_lower_bounds_of_the_extras() -> None:
    groups = dependencies.declared()
    assert set(matrix.EXTRAS) == groups.keys() - {"", "dev", "docs"}
    asked = [Requirement(text) for text in matrix.requirements("oldest")]
    assert {r.name for name in matrix.EXTRAS for r in groups[name]} <= {r.name for r in asked}
    versions = {r.name: next(iter(r.specifier)).version for r in asked}
    assert len(versions) == len(asked)
    for requirement in (r for name in ("", *matrix.EXTRAS) for r in groups[name]):
        assert requirement.specifier.contains(versions[requirement.name])
    # Of two extras that are installed together the lower bounds must be: gradio 6 needs this fastapi.
    assert Version(versions["fastapi"]) >= Version("0.115.2")


def test_the_packages_of_the_recipes_are_those_that_their_tests_need() -> None:
    needed = re.findall(r'need\("\w+", "([\w-]+)', (ROOT / "tests/test_recipes.py").read_text())
    needed += ["foolbox", "adversarial-robustness-toolbox"]
    # mlflow brings its database.
    assert set(needed) - {"sqlalchemy"} <= set(matrix.requirements("recipes"))


@pytest.mark.parametrize("named", [[], ["recipes", "oldest"]])
def test_a_dry_run_lists_packages_and_tests(
    named: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["matrix", "--list", *named])
    matrix.main()
    printed = capsys.readouterr().out
    assert re.findall(r"^(\w+): Python", printed, re.MULTILINE) == (named or list(matrix.PYTHONS))
    for part in ("oldest: Python 3.12\n  pip install torch==2.4 ", " ray==2.40 ", " gradio==6 ", " mlflow "):
        assert part in printed
    assert "  pytest -m slow -rs tests/test_recipes.py" in printed


def test_a_row_counts_all_calls(tmp_path: Path) -> None:
    reports = [tmp_path / "0.xml", tmp_path / "1.xml"]
    for report, tests in zip(reports, (10, 5), strict=True):
        suite = f'<testsuite tests="{tests}" skipped="1" timestamp="2026-01-02T03:04:05"/>'
        report.write_text(f"<testsuites>{suite}</testsuites>")
    found = {"Python": "3.12.1", "torch": "2.4.0", "numpy": "1.26.0", "scikit-learn": "1.6.0"}
    expected = "| oldest | 3.12.1 | 2.4.0 | 1.26.0 | 1.6.0 | 13 | 2 | 2026-01-02 |"
    assert matrix.row("oldest", found, reports) == expected


def test_the_tested_ranges_are_those_that_are_promised() -> None:
    page = (ROOT / "docs/dependencies.md").read_text()
    (cells,) = (line.split("|")[1:-1] for line in page.splitlines() if line.startswith("| oldest |"))
    shown = [Version(cell.strip()) for cell in cells[2 : 2 + len(matrix.SHOWN)]]
    lowest = {r.name: Version(matrix.lowest(r)) for r in dependencies.declared()[""]}
    assert [Version(version.public) for version in shown] == [lowest[name] for name in matrix.SHOWN]


def test_every_dependency_is_pinned_and_has_its_licence() -> None:
    page = (ROOT / "docs/dependencies.md").read_text()
    rows = re.findall(r"^\| ([a-z\d-]+) \| (lipcert|`\w+`) \| (.+) \|$", page, re.MULTILINE)
    listed = {name: licence for name, _, licence in rows}
    for requirement in (r for group in dependencies.declared().values() for r in group):
        assert requirement.name in PINS
        assert requirement.specifier.contains(PINS[requirement.name])
        found = dependencies.installed(requirement.name)
        assert found is None or listed[requirement.name] == dependencies.licence(found)
    # What only contributors install (docutils, by twine) reaches no user.
    installed_by_users = [name for name, group, _ in rows if group not in ("`dev`", "`docs`")]
    assert not [name for name in installed_by_users if listed[name] == "not stated" or "GPL" in listed[name]]


@pytest.mark.parametrize(
    ("lock", "groups"), [(dependencies.LOCK, ("",)), (dependencies.FULL_LOCK, ("", *matrix.EXTRAS))]
)
def test_a_lock_has_a_hash_for_every_package_and_the_pinned_versions(
    lock: Path, groups: tuple[str, ...]
) -> None:
    lines = [line for line in lock.read_text().splitlines() if not line.startswith("#")]
    locked = {}
    for line in lines:
        matched = re.fullmatch(r"([a-z\d-]+)==(\S+) --hash=sha256:[0-9a-f]{64}", line)
        assert matched, line
        locked[matched[1]] = matched[2].partition("+")[0]
    assert all(locked[name] == PINS[name] for name in locked.keys() & PINS.keys())
    assert {r.name for group in groups for r in dependencies.declared()[group]} <= locked.keys()


def test_the_page_names_every_command_that_downloads() -> None:
    section = (ROOT / "docs/dependencies.md").read_text().partition("## Network")[2].partition("\n## ")[0]
    commands = (ROOT / "src/lipcert/cli").glob("*.py")
    named = {f"lipcert {path.stem} --download" for path in commands if '"--download"' in path.read_text()}
    assert named
    assert all(f"`{name}`" in section for name in (*named, "lipcert data download"))


def archives(folder: Path, inside: list[str], sources: list[str]) -> tuple[Path, Path]:
    wheel, sdist = folder / "a.whl", folder / "a.tar.gz"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in (*inside, "lipcert-1.dist-info/RECORD"):
            archive.writestr(name, "")
    always = ["LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "constraints.txt"]
    with tarfile.open(sdist, "w:gz") as tar:
        for name in (*sources, *always):
            tar.addfile(tarfile.TarInfo(f"lipcert-1/{name}"), io.BytesIO())
    return sdist, wheel


@pytest.mark.parametrize(
    ("inside", "sources", "expected"),
    [
        (["lipcert/a.py"], ["src/lipcert/a.py"], []),
        ([], ["src/lipcert/a.py"], ["the wheel lacks lipcert/a.py"]),
        (
            ["lipcert/a.py", "tools/b.py"],
            ["src/lipcert/a.py"],
            ["the wheel holds tools/b.py"],
        ),
        (["lipcert/a.py"], [], ["the sdist lacks src/lipcert/a.py"]),
        (["lipcert/a.py"], ["src/lipcert/a.py", "tests/t.py"], ["the sdist holds tests/t.py"]),
    ],
)
def test_what_a_release_holds(
    inside: list[str], sources: list[str], expected: list[str], tmp_path: Path
) -> None:
    found = check_wheel.differences(*archives(tmp_path, inside, sources), {"lipcert/a.py"})
    assert len(found) == len(expected)
    assert all(a.startswith(b) for a, b in zip(found, expected, strict=True))


def test_a_command_that_fails_ends_the_check_with_its_output() -> None:
    with pytest.raises(SystemExit, match=r"broken\s+.*ended with 3"):
        check_wheel.run(sys.executable, "-c", "import sys; print('broken'); sys.exit(3)")
