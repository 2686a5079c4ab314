"""`tomllib`, which Python 3.10 has as the package `tomli`."""

import sys

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["tomllib"]
