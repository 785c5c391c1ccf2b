"""The compiled data plane: its C++ sources, and the engine that Python sees of it."""
