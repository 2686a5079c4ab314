"""How long tests wait for a condition."""

from __future__ import annotations

# Seconds until a test that hangs fails. Machines that run tests may be loaded, so no test depends
# on it: a shorter wait would only fail more tests.
PATIENCE = 600.0
