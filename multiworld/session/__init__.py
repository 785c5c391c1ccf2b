"""One generation of one world: its connections, its control messages, its end, its counters."""
