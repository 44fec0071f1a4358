"""python -m holdfast, which is also what torchrun starts."""

import sys

from holdfast.cli import main

if __name__ == "__main__":
    sys.exit(main())
