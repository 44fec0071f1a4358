"""The notebooks of docs/notebooks run from the first cell to the last, in an empty folder."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs/notebooks").glob("*.ipynb"))


def program(notebook: Path) -> str:
    """All code cells as one program; lines that begin with ! are commands."""
    cells = json.loads(notebook.read_text())["cells"]
    lines = ["import subprocess as _subprocess"]
    for cell in cells:
        if cell["cell_type"] == "code":
            for line in "".join(cell["source"]).splitlines():
                assert not line.startswith("%"), "magics run in IPython alone"
                command = f"_subprocess.run({line[1:]!r}, shell=True, check=True)"
                lines.append(command if line.startswith("!") else line)
    return "\n".join(lines)


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(notebook: Path, tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        [sys.executable, "-c", program(notebook)],
        cwd=tmp_path,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_python(notebook: Path) -> None:
    compile(program(notebook), notebook.name, "exec")
