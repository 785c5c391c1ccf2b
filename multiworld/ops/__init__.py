"""The operations of a world: point to point, collectives, objects."""
