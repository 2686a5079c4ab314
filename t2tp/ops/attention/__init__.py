"""Scaled dot-product attention on any layout."""
