"""The errors a user can cause. Each one is a single sentence that names the file, the row or the option."""

LONGEST = 200  # characters of a file's name in a sentence


class InputError(ValueError):
    """Something the user gave cannot be used. The command line prints it without a traceback and exits with 2."""


class ImageError(InputError):
    """One image cannot be read. Within a folder it is listed and skipped; alone it is an error."""


def in_a_sentence(error: OSError | MemoryError | RecursionError) -> str:
    """What the machine refused where nobody expected it, for a person who cannot do anything with a traceback."""
    if isinstance(error, MemoryError):
        return f"There is not enough memory for this{f': {error}' if str(error) else ''}."
    if isinstance(error, RecursionError):
        return "A file or an option is nested too deeply to be read."
    name = "" if error.filename is None else str(error.filename)
    if len(name) > LONGEST:
        name = f"{name[: LONGEST // 2]}...{name[-LONGEST // 2 :]}"
    reason = error.strerror or str(error) or type(error).__name__
    return f"{name} cannot be read or written: {reason}." if name else f"{reason}."
