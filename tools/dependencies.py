"""Write down what lipcert depends on: licences into docs/dependencies.md, hashes into the lock files.

    python -m tools.dependencies

Run it in the environment that `make test` makes, after a change of pyproject.toml or constraints.txt. The
hashes are those of the files that pip chooses for this Python on this kind of machine; nothing is installed.
"""

import json
import platform
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PAGE, LOCK = ROOT / "docs/dependencies.md", ROOT / "requirements.lock"
FULL_LOCK = ROOT / "requirements-extras.lock"
"""What the extras need as well."""
BEGIN, END = "<!-- licences -->", "<!-- /licences -->"
SPDX = {
    "Apache 2.0": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD": "BSD",
    "BSD License": "BSD",
    "BSD 3-Clause License": "BSD-3-Clause",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "3-Clause BSD License": "BSD-3-Clause",
    "ISC License (ISCL)": "ISC",
}
"""What packages write, as the identifiers of SPDX."""


def declared() -> dict[str, list[Requirement]]:
    """The requirements in pyproject.toml: the package's own under "", those of each extra under its name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    return {name: [Requirement(text) for text in texts] for name, texts in groups.items()}


def installed(name: str) -> Distribution | None:
    """The distribution of that name, if it is installed."""
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def closure(requirements: Iterable[Requirement]) -> set[str]:
    """Names of all packages that these need on this machine, themselves included."""
    found: set[str] = set()
    seen: set[str] = set()
    todo = list(requirements)
    while todo:
        requirement = todo.pop()
        if str(requirement) in seen:
            continue
        seen.add(str(requirement))
        if (package := installed(requirement.name)) is None:
            continue
        found.add(canonicalize_name(requirement.name))
        for text in package.requires or []:
            further = Requirement(text)
            extras = requirement.extras or {""}
            if further.marker is None or any(further.marker.evaluate({"extra": extra}) for extra in extras):
                todo.append(further)
    return found


def licence(package: Distribution) -> str:
    """What a package says of its licence: its SPDX expression, else its classifiers, else its own words."""
    metadata = package.metadata.json
    if expression := metadata.get("license_expression"):
        return str(expression)
    classes = [c.rpartition(" :: ")[2] for c in metadata.get("classifier", []) if c.startswith("License")]
    names = [SPDX.get(name, name) for name in classes if name not in ("OSI Approved", "DFSG approved")]
    if not names:
        names = [SPDX.get(line, line) for line in str(metadata.get("license", "")).splitlines()[:1]]
    return " and ".join(sorted({*names})) or "not stated"


def rows() -> Iterator[str]:
    """One line of the table per package: who needs it first, and its licence."""
    groups = declared()
    needed_by: dict[str, str] = {}
    for group in ["", *sorted(groups, key=lambda name: (name in ("dev", "docs"), name))]:
        for name in closure(groups[group]):
            needed_by.setdefault(name, f"`{group}`" if group else "lipcert")
    for name in sorted(needed_by):
        package = installed(name)
        assert package is not None
        yield f"| {name} | {needed_by[name]} | {licence(package)} |"


def licences() -> str:
    """The generated part of the page."""
    return "\n".join([BEGIN, "| package | needed by | licence |", "| --- | --- | --- |", *rows(), END])


def lock(*extras: str) -> str:
    """Every package that `pip install lipcert` with extras brings, pinned, with the hash of its file."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        command += ["--report", str(report), "--constraint", str(ROOT / "constraints.txt")]
        command.append(f"{ROOT}[{','.join(extras)}]" if extras else str(ROOT))
        subprocess.run(command, check=True)
        items = json.loads(report.read_text())["install"]
    lines = [
        f"# Made by `python -m tools.dependencies`: Python {'.'.join(platform.python_version_tuple()[:2])}, "
        f"{platform.system()} {platform.machine()}, the CPU build of torch.",
        "# pip install --require-hashes -r THIS_FILE && pip install --no-deps lipcert",
    ]
    for item in sorted(items, key=lambda item: canonicalize_name(item["metadata"]["name"])):
        name, version = canonicalize_name(item["metadata"]["name"]), item["metadata"]["version"]
        if name == "lipcert":
            continue
        digest = item["download_info"]["archive_info"]["hashes"]["sha256"]
        lines.append(f"{name}=={version} --hash=sha256:{digest}")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write all files."""
    text = PAGE.read_text()
    PAGE.write_text(re.sub(f"{BEGIN}.*?{END}", lambda _: licences(), text, flags=re.DOTALL))
    LOCK.write_text(lock())
    FULL_LOCK.write_text(lock(*(name for name in declared() if name not in ("", "dev", "docs"))))


if __name__ == "__main__":
    main()
