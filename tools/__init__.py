"""What builds the site: pages that are made of the code, and the hook that adds them."""
