"""The lipcert command line: parse, call, print."""

import sys

__all__ = ["main"]


def main() -> int:
    """Run the command line, see `lipcert.cli.app`; Ctrl-C may come before that is even read."""
    try:
        from lipcert.cli.app import main as run
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130
    return run()
