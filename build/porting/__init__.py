"""Move a patch series from one tree to another, hunk by hunk, and say how each one got there."""
