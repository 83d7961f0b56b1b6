"""Opens data to measure a model on, and chooses the samples: none that it was trained on, and as many as there are."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from vitrail.config import DataConfig
from vitrail.data.sources import open_source
from vitrail.data.sources.base import Source, Split, SplitRule
from vitrail.errors import UserError


class Measured(NamedTuple):
    """Data that measures a model."""

    source: Source
    split: str
    note: str
    """A sentence on the choice, where the split is not the data set's own test split or was not asked for by name."""


def training_data(source: Source, config: DataConfig) -> dict[str, Any]:
    """Describes the data of a training for the model's card, so that its samples can be told from others later.

    Args:
        source: The data that was trained on.
        config: How it was opened; where that took some of the samples only, the fingerprint is still that of all.
    """
    rule = SplitRule(config.split_seed, config.val_fraction, config.test_fraction)
    some = config.train_size is not None or config.val_size is not None
    whole = _opened(config.source, rule, config.task) if some else source
    return {"source": source.name, "fingerprint": whole.fingerprint(), "split_rule": asdict(rule)}


def open_to_measure(
    data: Source | str | Path, provenance: Mapping[str, Any], split: str | None = None, task: str | None = None
) -> Measured:
    """Opens a source with the splits that a model's training cut, if it was trained on it, and chooses a split.

    A split that the data set names itself, test before val; else all of it, unless the model was trained on it: then
    the part that training set aside.

    Args:
        data: The source, or one that is open, which keeps its splits; a note says where training cut others.
        provenance: Where the model came from, as its card says; its `data` names what it was trained on, and how.
        split: The split to measure; None chooses.
        task: What the model answers, and the data has to; None: whatever the data tells.
    """
    source = data if isinstance(data, Source) else open_source(data, task=task)
    facts = provenance.get("data")
    facts = facts if isinstance(facts, Mapping) else {}
    same = bool(facts) and facts.get("fingerprint") == source.fingerprint()
    trained = same or _place(facts.get("source")) == _place(source.name)
    ruled = trained and _rule(facts) != SplitRule()
    if ruled and not isinstance(data, Source):
        source = _opened(data, _rule(facts), task)
    cut = [each for each in ("test", "val") if each in source.made_splits]
    own = [each for each in ("test", "val") if each in source.splits and each not in cut]
    if split is None and own:
        return Measured(source, own[0], f"{source.name} has no test split: measured on val" if own == ["val"] else "")
    if split is None:
        split = cut[0] if trained and cut else "all"
    elif split not in cut:
        return Measured(source, split, "")
    sentence = _sentence(source, split, trained, same, bool(facts))
    if ruled and isinstance(data, Source) and split != "all":
        sentence += f"; it is measured as it was opened, and training cut it by {_rule(facts)}"
    return Measured(source, split, sentence)


def labelled(source: Source, name: str, single_class: bool = False) -> tuple[Split, list[str]]:
    """Takes the samples of a split that have a target, and says in a sentence how many have none.

    Args:
        source: The data.
        name: The split.
        single_class: Whether what is needed is the one class of each sample, which not every source has.
    """
    whole = source.split(name)
    known = (whole.labels >= 0 if single_class else whole.known).nonzero()[0]
    if not len(whole):
        raise UserError(f"{source.name}: the split {name!r} has no samples")
    source.check_labelled()
    if not len(known):
        raise UserError(f"{source.name}: no sample of {name!r} has a label, so there is nothing to compare with")
    if len(known) == len(whole):
        return whole, []
    return whole.subset(known), [f"{len(whole) - len(known):,} samples of {name} have no label: left out"]


def _sentence(source: Source, split: str, trained: bool, unchanged: bool, told: bool) -> str:
    """Says what is measured of a source that has no such split of its own."""
    count = f"{len(source.split(split)):,}"
    begin = f"{source.name} has no {'splits' if split == 'all' else f'{split} split'} of its own"
    if trained and split == "all":
        return f"{begin}, and training set nothing aside: measured on all {count}, which the model was trained on"
    if trained:
        changed = "" if unchanged else "; it has changed since, so that some of them may have been trained on"
        return f"{begin}: measured on the {count} samples ({split}) that training set aside{changed}"
    if split == "all":
        why = "the model was not trained on it" if told else "the model does not say that it was trained on it"
        return f"{begin}, and {why}: measured on all {count}"
    return f"{begin}: measured on {count} of its {len(source.all):,} samples, cut by seed"


def _rule(facts: Mapping[str, Any]) -> SplitRule:
    """The rule that a model's card names; what is damaged or not told is as usual."""
    told = facts.get("split_rule")
    try:
        return SplitRule(**told) if isinstance(told, Mapping) else SplitRule()
    except TypeError as error:
        raise UserError(f"the model's card names a split rule that is not understood: {dict(told or {})}") from error


def _opened(data: str | Path, rule: SplitRule, task: str | None) -> Source:
    fractions = {"val_fraction": rule.val_fraction, "test_fraction": rule.test_fraction}
    return open_source(data, split_seed=rule.seed, task=task, **fractions)


def _place(name: Any) -> str:
    text = str(name)
    return str(Path(text).resolve()) if Path(text).exists() else text
