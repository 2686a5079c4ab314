"""The store of these tests."""

from tests.store_server import _server, server  # noqa: F401
