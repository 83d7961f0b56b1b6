"""The errors of a sample that cannot be used."""


class BadImage(Exception):
    """A sample that cannot be used; the message says why, in a sentence that can follow its name."""


class OutsideUnits(BadImage):
    """An array of floats outside 0..1, of which nobody has said what is black and what is white."""
