"""The page that shows a person what was found. One self-contained file."""
