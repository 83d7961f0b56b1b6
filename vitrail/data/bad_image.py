"""Exceptions for samples that cannot be used."""


class BadImage(Exception):
    """Raised for a sample that cannot be used. The message is a predicate that can follow its name: "is empty"."""


class OutsideUnits(BadImage):
    """Raised for an array of floats outside 0 to 1 if no range says which values are black and white."""


class TooLarge(BadImage):
    """Raised for a picture whose header states more pixels than are allowed."""


class TooCostly(BadImage):
    """Raised for a picture that takes more time or memory to decode than is allowed."""


class WrongFormat(BadImage):
    """Raised for a picture in a format that is not allowed."""


class NotIds(BadImage):
    """Raised for a mask that can be decoded and does not hold whole numbers that can be ids."""


KINDS = {kind.__name__: kind for kind in (BadImage, OutsideUnits, TooLarge, TooCostly, WrongFormat, NotIds)}
"""These exceptions by name; by it one process tells another which was raised."""
