"""Variables: creating, gathering and assigning those that may be sharded at rest."""
