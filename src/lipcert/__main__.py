"""python -m lipcert, which is also what torchrun starts."""

import sys

from lipcert.cli import main

if __name__ == "__main__":
    sys.exit(main())
