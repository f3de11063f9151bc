"""What every other part needs and that knows nothing of learning: errors, console, memory, processes, files."""
