"""Build the package, check it, install the wheel into an empty environment and run the demonstration there.

    python -m tools.check_wheel [--isolated] [--keep FOLDER]

The sdist is made from the tree and the wheel from the sdist, so both are tested. `--isolated` builds in an
environment of its own, as a packager would; without it the build uses the setuptools that is installed.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONSTRAINTS = ROOT / "constraints.txt"


def run(*command: str | Path, cwd: Path = ROOT, shown: bool = False) -> None:
    """Run a command that must not see this tree's package; what it prints is shown, or only if it fails."""
    print("+", *command, flush=True)
    hidden = {"PYTHONPATH", "VIRTUAL_ENV"}
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    text = [str(part) for part in command]
    pipe = None if shown else subprocess.PIPE
    done = subprocess.run(text, cwd=cwd, env=environment, stdout=pipe, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        sys.exit(f"{(done.stdout or b'').decode()}\n{' '.join(text)} ended with {done.returncode}")


def new_environment(folder: Path, python: str = sys.executable) -> Path:
    """An empty virtual environment; returns its interpreter."""
    if python == sys.executable:
        venv.create(folder, with_pip=True)
    else:
        run(python, "-m", "venv", folder)
    return folder / "bin" / "python"


def build(out: Path, *, isolated: bool = False) -> tuple[Path, Path]:
    """Make the sdist and, from it, the wheel; returns the two files."""
    run(sys.executable, "-m", "build", *(() if isolated else ("--no-isolation",)), "--outdir", out)
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel)
    return sdist, wheel


def package_files() -> set[str]:
    """What the repository keeps of the package, as the wheel names it."""
    listed = subprocess.run(
        ["git", "ls-files", "src/lipcert"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split("\n")
    return {name.removeprefix("src/") for name in listed if name}


def differences(sdist: Path, wheel: Path, expected: set[str]) -> list[str]:
    """Files that the two lack, and files that do not belong there."""
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
    found = [f"the wheel lacks {name}" for name in sorted(expected - inside)]
    found += [f"the wheel holds {name}, which is not in the repository" for name in sorted(inside - expected)]
    with tarfile.open(sdist) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    wanted = {f"src/{name}" for name in expected} | {
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "constraints.txt",
    }
    found += [f"the sdist lacks {name}" for name in sorted(wanted - names)]
    strange = sorted(name for name in names if name.startswith(("tests", "tools", "results", "docs")))
    return found + [f"the sdist holds {name}" for name in strange]


def try_out(wheel: Path, folder: Path) -> None:
    """Install the wheel alone, with what it asks for, and run the demonstration away from the tree."""
    python = new_environment(folder / "environment")
    run(python, "-m", "pip", "install", "--quiet", "--constraint", CONSTRAINTS, wheel)
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    where = "import lipcert, sys; assert lipcert.__file__.startswith(sys.prefix), lipcert.__file__"
    run(python, "-W", "error", "-c", where, cwd=elsewhere)
    command = python.with_name("lipcert")
    run(command, "--version", cwd=elsewhere)
    run(command, "demo", cwd=elsewhere)
    run(command, "verify", "runs/demo", cwd=elsewhere)


def main() -> None:
    """Read the arguments and do all of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--isolated", action="store_true", help="build in an environment of its own")
    parser.add_argument("--keep", type=Path, help="folder for the two files, to upload them")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sdist, wheel = build(folder / "dist", isolated=arguments.isolated)
        wrong = differences(sdist, wheel, package_files())
        if wrong:
            sys.exit("\n".join(wrong))
        try_out(wheel, folder)
        if arguments.keep:
            arguments.keep.mkdir(parents=True, exist_ok=True)
            for path in (sdist, wheel):
                shutil.copy2(path, arguments.keep)
    print("the wheel installs and runs")


if __name__ == "__main__":
    main()
