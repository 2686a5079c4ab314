"""Tools that build the site, with pages generated from the code, and tools that check prose."""
