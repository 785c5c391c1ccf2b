"""A member of a world (``member``) and one generation of it: connections, control messages, end, counters."""
