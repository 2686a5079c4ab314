"""What is measured: each case is groups of peers that do the same."""
