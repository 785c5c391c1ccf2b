"""The matching engine: operations, messages and collectives of one world generation, without any I/O."""
