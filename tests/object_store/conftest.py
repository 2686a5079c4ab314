"""Imports the fixtures of the store server."""

from tests.store_server import _server, server  # noqa: F401
