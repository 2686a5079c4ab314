"""The engine: a mesh of devices, and programs in named dimensions that run on it."""
