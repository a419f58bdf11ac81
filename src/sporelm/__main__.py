"""`python -m sporelm` is `spore`."""

import sys

from sporelm.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
