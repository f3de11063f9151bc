"""The loop and what surrounds it: features, plan, checkpoints, log, identity."""
