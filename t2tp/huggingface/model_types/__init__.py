"""The supported types of models, one table per type."""
