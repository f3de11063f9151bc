"""A run from data to directory, and everything that is done with a finished one."""
