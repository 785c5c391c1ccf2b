"""Signs of life: pings answered by a native thread of each process, and the clock that judges silence."""
