"""The paper's tables and figures, each by one command: what they hold, what they need, and what they claim."""
