"""What a number was measured or proved on."""

import platform
import shlex
import sys
from pathlib import Path


def cpu_model() -> str:
    """The processor's name, as the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def command_line() -> str:
    """The command that is running, as it would be typed; python -m holdfast is holdfast."""
    program = Path(sys.argv[0]).name
    return shlex.join(["holdfast" if program == "__main__.py" else program, *sys.argv[1:]])
