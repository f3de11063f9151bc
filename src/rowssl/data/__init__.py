"""Tables, labels, pictures and their views, splits, benchmarks, and the feed of a training."""
