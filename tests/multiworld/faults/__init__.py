"""What can go wrong, with real processes: every fault is proven to have happened before its consequences are judged."""
