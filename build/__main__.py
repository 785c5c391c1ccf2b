"""`python -m build`: the tooling's command line."""

import sys

from build.cli import run

sys.exit(run())
