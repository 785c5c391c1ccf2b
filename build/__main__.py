"""`python -m build`: the tooling's command line."""

import gc
import sys

gc.disable()  # until the command is loaded, see build/cli.py: that takes a fifth of the time less

from build.cli import run  # noqa: E402

sys.exit(run())
