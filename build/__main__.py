"""`python -m build`: the tooling's command line."""

import sys

from build.cli import main

sys.exit(main())
