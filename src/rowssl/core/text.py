"""Text from untrusted input, as it may be shown on a terminal or in a message."""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` on one line and encodable: control characters and undecodable bytes become backslash escapes."""

    def escape(character: str) -> str:
        if "\udc80" <= character <= "\udcff":  # a byte of a file name that is not UTF-8 (surrogateescape)
            return f"\\x{ord(character) - 0xDC00:02x}"
        return character.encode("unicode_escape").decode("ascii")

    return text if text.isprintable() else "".join(c if c.isprintable() else escape(c) for c in text)
