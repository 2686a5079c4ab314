"""The types of models, a file for each."""
