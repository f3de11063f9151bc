"""k-means (plain and with labelled rows), Ward's tree, and assignment. Knows nothing of methods."""
