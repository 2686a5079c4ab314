"""The cases of the benchmark. A case has groups of peers, and the peers of a group do the same."""
