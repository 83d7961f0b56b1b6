"""The one error of a sample that cannot be used."""


class BadImage(Exception):
    """A sample that cannot be used; the message says why, in a sentence that can follow its name."""
