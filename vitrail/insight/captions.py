"""Writes the text below each figure from the content of numbers.json.

Each caption says what the figure shows and what this model's own numbers mean.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

Numbers = Mapping[str, Any]
"""The content of numbers.json."""
CLEAR = 0.1
"""The smallest difference of two mean cosines that is called a difference."""


class Caption(NamedTuple):
    """The text that goes with a figure."""

    shows: str
    """What the figure shows."""
    says: str
    """What this model's numbers mean."""
    how: str = ""
    """How it was measured, where that is not obvious."""


def filters(numbers: Numbers) -> Caption:
    """Describes the figure of filters."""
    found = numbers["filters"]
    shares = found["explained_variance"]
    return Caption(
        f"The main patterns that {found['of']} looks for in the pixels, each with its share of the differences between "
        "filters; a trained model has smooth waves, edges and colours here, an untrained one noise.",
        f"{_count(len(shares), 'component')} explain {_percent(found['explained_together'])} of the variance, the "
        f"first alone {_percent(shares[0])}.",
    )


def positions(numbers: Numbers) -> Caption:
    """Describes the figure of position similarity."""
    found = numbers["position_similarity"]
    shows = (
        "Each small map belongs to one patch and shows how similar the model's embedding of that place is to those of "
        "all others; a model that has learned where things are makes neighbours alike."
    )
    near, far = found["near"], found["far"]
    if near is None or far is None:
        return Caption(shows, "The grid is too small to tell near from far.")
    verdict = "hardly more" if abs(near - far) <= CLEAR else "more" if near > far else "NOT more"
    says = (
        f"Neighbours have a mean cosine of {near:.2f}, places far apart {far:.2f}: positions are {verdict} similar "
        "near than far"
    )
    if found["same_row"] is not None and found["same_column"] is not None and found["elsewhere"] is not None:
        says += (
            f"; within a row it is {found['same_row']:.2f}, within a column {found['same_column']:.2f}, "
            f"elsewhere {found['elsewhere']:.2f}"
        )
    return Caption(shows, says + ".")


def distance(numbers: Numbers) -> Caption:
    """Describes the figure of attention distances."""
    found = numbers["attention_distance"]
    early, heads = found["early_layers"], len(found["mean"][0])
    total = early * heads
    wide, narrow = (round(found[key] * total) for key in ("early_global_share", "early_local_share"))
    by_layer, trend = found["by_layer"], found["depth_correlation"]
    first = "first layer" if early == 1 else f"first {early} layers"
    growth = (
        ""
        if trend is None
        else f" (rank correlation with depth {trend:.2f}: "
        + ("it grows with depth)" if trend > 0.5 else "it falls with depth)" if trend < -0.5 else "no clear trend)")
    )
    return Caption(
        "How far, in pixels, each head looks on average from a patch to the patches it attends to: low dots look at "
        "their surroundings, as a convolution does, high ones at the whole image.",
        f"Over {_count(found['n'], 'image')}, {wide} of {total} heads in the {first} are global and {narrow} local; "
        f"the mean goes from {pixels(by_layer[0])} in the first layer to {pixels(by_layer[-1])} in the last, where "
        f"attending to all alike would be {pixels(found['uniform'])}{growth}.",
        "Class and register tokens are left out and the rest of each row is scaled to 1. A head is called global from "
        "two thirds of the distance of attending to all patches alike, local up to one third.",
    )


def attention(numbers: Numbers, reader: str) -> Caption:
    """Describes the figure of attention by layer and head; `reader` names the tokens that the classifier reads."""
    found = numbers["attention_distance"]
    shares = found["prefix_share"]
    shows = (
        f"Where what the classifier reads ({reader}) looks in the first image: a column a layer, a row a head, "
        "bright is much, drawn by the root."
    )
    if not numbers["model"]["prefix_tokens"]:
        return Caption(shows, "The model has no class or register tokens: all attention goes to patches.")
    most = max(range(len(shares)), key=shares.__getitem__)
    return Caption(
        shows,
        f"The patches themselves give class and register tokens {_percent(sum(shares) / len(shares))} of their "
        f"attention on average, most in layer {found['layers'][most]} ({_percent(shares[most])}).",
    )


def maps(numbers: Numbers) -> Caption:
    """Describes the maps of what the answer depends on, and how well they agree."""
    found = numbers["agreement"]
    shows = (
        "What the answer rests on, four ways: the last layer's attention, rollout (attention followed through all "
        "layers), gradient rollout (only what raises the score of the class named), and occlusion, which hides parts "
        "of the image, sees how much the score falls, and knows nothing of attention."
    )
    plain, weighted = found["rollout_and_occlusion"], found["gradient_and_occlusion"]
    if plain is None or weighted is None:
        return Caption(shows, "No occlusion map was made, or a map is flat: there is no agreement to measure.")
    better = "gradient rollout is the better guide" if weighted > plain else "plain rollout is the better guide"
    return Caption(
        shows,
        f"Over {_count(found['n'], 'image')}, rollout orders the patches as occlusion does with a rank correlation of "
        f"{plain:.2f}, gradient rollout with {weighted:.2f} (1 is alike, 0 unrelated): here {better}, and "
        f"{_trust(max(plain, weighted))}.",
        "The score is the log-odds of the class against all others. Each map is stretched to its own range.",
    )


def _trust(correlation: float) -> str:
    """Says how far a map with this rank correlation can be trusted."""
    if correlation >= 0.5:
        return "what it marks is mostly what counts"
    return "it agrees loosely at best" if correlation >= 0.2 else "neither can be trusted much"


def features(numbers: Numbers) -> Caption:
    """Describes the figure of patch features as colours."""
    shares = numbers["features"]["explained_by_three"]
    return Caption(
        "The model's last features of every patch, their three main directions as red, green and blue: patches of one "
        "colour are alike to the model, across images too.",
        f"The three directions hold {_percent(sum(shares))} of what tells patches apart (the first "
        f"{_percent(shares[0])}).",
    )


def neighbours(numbers: Numbers) -> Caption:
    """Describes the figure of nearest patches."""
    cosines = [like["cosine"] for each in numbers["features"]["nearest"] for like in each["like"]]
    shows = (
        "The patch that counts most in an image, and the patches of other images whose features are most like it, the "
        "most alike first: what the model takes for the same kind of thing."
    )
    if not cosines:
        return Caption(shows, "There is no other patch to compare with.")
    return Caption(shows, f"Their cosine similarity is from {min(cosines):.2f} to {max(cosines):.2f}.")


def merging(numbers: Numbers) -> Caption:
    """Describes the figure of merged patches."""
    found = numbers["merging"]
    return Caption(
        "Which patches would become one token if each layer merged the most alike, which makes a model faster: those "
        "together are painted in their mean colour.",
        f"Merging {found['per_layer']} a layer leaves {found['tokens_left']:.0f} of {found['patches']} tokens; the "
        f"largest holds {_count(found['largest_group'], 'patch')}.",
    )


def pixels(distance: float) -> str:
    """Returns a distance with its unit, such as 7.5 px."""
    return f"{distance:.{0 if distance >= 20 else 1}f} px"


def _percent(share: float) -> str:
    """Returns a share in percent, such as 4.2 %."""
    return f"{100 * share:.{1 if share < 0.1 else 0}f} %"


def _count(number: int, name: str) -> str:
    """Returns a number with its noun in the singular or plural."""
    return f"{number:,} {name}" + ("" if number == 1 else "es" if name.endswith("ch") else "s")
