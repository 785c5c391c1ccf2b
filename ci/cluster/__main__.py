"""`python -m ci.cluster`, what `ci/install` runs."""

from __future__ import annotations

import sys

from build.cli import guarded, only, run
from ci.cluster.app import install

sys.exit(run(lambda: guarded(only(install))))
