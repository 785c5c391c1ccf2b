"""Move a patch series from one tree to another, hunk by hunk, and report how each hunk was placed."""
