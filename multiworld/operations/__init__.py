"""The operations of a group, one file per family: check, plan, start, wait."""
