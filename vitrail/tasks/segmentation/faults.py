"""The faults of masks that a check of a data set names, each with what it means and what to do about it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class MaskFault:
    """A kind of fault."""

    title: str
    """What is counted, in the plural: "pictures without a mask"."""
    remedy: str
    """What it means, and what to do about it."""


MASK_FAULTS = {
    "mask_missing": MaskFault(
        "pictures without a mask", "They are not learned. A mask has the name of its picture without the ending."
    ),
    "picture_missing": MaskFault(
        "masks without a picture", "They are left out. A mask has the name of its picture without the ending."
    ),
    "several_masks": MaskFault(
        "masks of pictures that have another one", "Which of them counts is chance: keep one, and move the others away."
    ),
    "unreadable": MaskFault("masks that cannot be read", "Fetch them again, or make them again."),
    "not_ids": MaskFault("masks that hold no ids", "Ids of classes are whole numbers from 0 to 65535, one a pixel."),
    "lossy": MaskFault(
        "masks saved as JPEG or the like", "Such formats change ids, along edges above all: save masks as PNG."
    ),
    "transparent": MaskFault(
        "masks with transparency", "It does not count: only the ids or colours below it do. Save masks without it."
    ),
    "no_colour_table": MaskFault(
        "masks in colours without a table", "List the colours in a classes.csv, with the columns id,name,colour."
    ),
    "unknown_colours": MaskFault(
        "masks with colours that are not in the table", "Add these colours to the file of classes, or paint them over."
    ),
    "blended": MaskFault(
        "masks that were resized with blending",
        "Along edges they have ids in between, which are other classes or none: resize masks by the nearest pixel.",
    ),
    "unknown_ids": MaskFault(
        "masks with ids that no class has", "Name the ids in the file of classes, or leave them out with --ignore."
    ),
    "palettes_differ": MaskFault(
        "masks with another palette than most",
        "An id counts and not its colour: where programs sort palettes anew, one id is several classes.",
    ),
    "turned": MaskFault(
        "masks that are not turned as their pictures are",
        "EXIF data turn the picture and not its mask: save both without such data, upright.",
    ),
    "resized": MaskFault(
        "masks resized against their pictures", "Give the mask of each picture at the picture's own size."
    ),
    "size_differs": MaskFault(
        "masks of other sizes than their pictures", "They belong to other pictures, or either was cropped."
    ),
    "all_ignored": MaskFault("masks that are ignored altogether", "There is nothing to learn from them."),
    "one_class": MaskFault("masks of one class only", "Right for pictures without any object; else they are empty."),
    "equal_masks": MaskFault(
        "equal masks for different pictures", "One of them has been copied to the other's name by mistake."
    ),
    "contradicting": MaskFault("equal pictures with different masks", "At most one of the masks can be right."),
    "class_never": MaskFault("classes that no mask has", "They can be neither learned nor measured."),
    "class_in_one_split": MaskFault(
        "classes in the masks of one split only", "What is learned cannot be measured, or the other way round."
    ),
}
"""The kinds of faults by their names in check.json."""
