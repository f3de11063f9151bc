"""The errors a user can cause. Each one is a single sentence that names the file, the row or the option."""


class InputError(ValueError):
    """Something the user gave cannot be used. The command line prints it without a traceback and exits with 2."""


class ImageError(InputError):
    """One image cannot be read. Within a folder it is listed and skipped; alone it is an error."""
