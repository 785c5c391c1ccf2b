"""The modules and the command of pymultiworld 0.2.3, on top of this package."""
