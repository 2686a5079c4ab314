"""Blocks of models, in named dimensions: none knows the mesh.

Variables are made where they are used, by name in the current variable scope; the same name in the
same scope is the same variable.
"""
