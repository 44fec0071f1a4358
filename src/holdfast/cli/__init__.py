"""The holdfast command line: parse, call, print."""

import sys

__all__ = ["main"]


def main() -> int:
    """Run the command line, see `holdfast.cli.app`; Ctrl-C may come before that is even read."""
    try:
        from holdfast.cli.app import main as run
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130
    return run()
