"""Checks the labels of a data set."""

from collections.abc import Mapping, Sequence

import numpy as np

from vitrail.tasks.audits import Audit, CheckedSplit


def audit(splits: Mapping[str, CheckedSplit], names: Sequence[str]) -> Audit:
    """Counts the pictures of each label; finds labels of one picture or none, and pictures without labels."""
    known = {split: each.targets[(each.targets >= 0).all(axis=1)] for split, each in splits.items()}
    counts = {split: (each > 0).sum(axis=0) if len(names) else () for split, each in known.items()}
    balance = {name: {split: int(count[place]) for split, count in counts.items()} for place, name in enumerate(names)}
    totals = {name: sum(each.values()) for name, each in balance.items()}
    never = [name for name, total in totals.items() if total == 0]
    once = [name for name, total in totals.items() if total == 1]
    untrained = [name for name, each in balance.items() if totals[name] and not each.get("train", 1)]
    pictures = sum(map(len, known.values()))
    without = sum(int((each <= 0).all(axis=1).sum()) for each in known.values())
    share = without / max(pictures, 1)
    findings = {
        "labels_never": never,
        "labels_once": once,
        "labels_not_in_train": untrained,
        "without_labels": {"n": without, "share": share},
        "labels_a_picture": float(np.sum(list(totals.values())) / max(pictures, 1)),
    }
    kinds = (
        ("labels that no picture has", never),
        ("labels of one picture", once),
        ("labels not in train", untrained),
    )
    spread = f"  (of {min(totals.values()):,} to {max(totals.values()):,} images)" if totals else ""
    lines = [
        ("labels", f"{len(names):,}{spread}"),
        *((what, _some(found)) for what, found in kinds),
        ("pictures without a label", f"{without:,}  ({share:.1%})"),
    ]
    rows = [(name, what) for what, found in kinds for name in found]
    about = "Too few pictures to learn them from, or to measure them by."
    shares = [
        ("pictures with labels that are known", f"{pictures:,}"),
        ("of these without any", f"{without:,} ({share:.1%})"),
    ]
    shares.append(("labels a picture", f"{findings['labels_a_picture']:.3g}"))
    tables = [("Labels a picture", "", ("", ""), shares), ("Rare labels", about, ("label", "why"), rows)]
    return Audit(balance, findings, lines, tables)


def _some(names: Sequence[str]) -> str:
    return f"{len(names):,}  (such as {names[0]})" if names else "0"
