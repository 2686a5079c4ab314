"""Creation, gathering and assignment of variables that may be sharded at rest."""
