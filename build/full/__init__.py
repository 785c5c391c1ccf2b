"""Full builds: a wheel compiled from the whole patched tree; planned before, resumed after a failure, repaired."""
