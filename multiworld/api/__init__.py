"""What programs call: the operations of a group, to be awaited, and their synchronous twins."""
