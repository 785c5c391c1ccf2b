"""The version and the distribution's name, in one place that imports nothing."""

VERSION = "0.1.0"
#: The name to install by. Not the package's: on the index ``multiworld`` is pymultiworld.
DISTRIBUTION = "torch-multiworld"
