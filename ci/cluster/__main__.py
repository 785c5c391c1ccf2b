"""`python -m ci.cluster`, what `ci/install` runs."""

from __future__ import annotations

import sys

from ci.cluster.app import main

sys.exit(main())
