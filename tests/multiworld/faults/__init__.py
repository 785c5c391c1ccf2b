"""Faults of real processes: each is proven to have happened before its consequences are judged."""
