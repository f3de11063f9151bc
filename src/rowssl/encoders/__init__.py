"""Frozen trunks with a trainable tail, their weights, and the cache of what a trunk gives."""
