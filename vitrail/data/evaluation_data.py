"""Opening data to measure a model on, and choosing a split of it that the model was not trained on, if there is one."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from vitrail.config import DataConfig
from vitrail.data.sources import open_source
from vitrail.data.sources.base import Source, Split, SplitRule
from vitrail.errors import UserError


class EvaluationData(NamedTuple):
    """Data to measure a model on."""

    source: Source
    split: str
    """The name of the chosen split."""
    note: str
    """A sentence on the choice of the split; "" if it is the data set's own test split, or the user named it."""


def training_data(source: Source, config: DataConfig) -> dict[str, Any]:
    """Describes the data of a training for the model's card, by which the same data are recognised later.

    Args:
        source: The data that was trained on.
        config: How it was opened. If that took only some of the samples, the fingerprint is still that of all.
    """
    rule = SplitRule(config.split_seed, config.val_fraction, config.test_fraction)
    some = config.train_size is not None or config.val_size is not None
    full = _opened(config.source, rule, config.task, config.ignore) if some else source
    facts = {"source": source.name, "fingerprint": full.fingerprint(), "split_rule": asdict(rule)}
    return {**facts, "ignore": list(config.ignore)} if config.ignore else facts


def open_to_measure(
    data: Source | str | Path, provenance: Mapping[str, Any], split: str | None = None, task: str | None = None
) -> EvaluationData:
    """Opens a source to measure a model on, and chooses a split.

    If the model was trained on this source, the source is split in the way training split it. The chosen split is one
    that the data set itself has, test rather than val. If it has neither, it is all of the source or, if the model was
    trained on it, the part that training set aside. Ids in masks that training ignored are ignored in any source.

    Args:
        data: The source, by name or path, or already open. An open one keeps its splits; if training split it in
            another way, a note says so.
        provenance: The origin of the model, from its card; its entry `data` says what it was trained on and how that
            was split.
        split: The split to use; None to choose one.
        task: The model's task, which must be that of the data; None to take the task that the data show.

    Raises:
        UserError: If the source cannot be opened, has no such split, or the card's split rule is damaged.
    """
    facts = provenance.get("data")
    facts = facts if isinstance(facts, Mapping) else {}
    ignore = _ignored(facts)
    source = data if isinstance(data, Source) else open_source(data, task=task, ignore=ignore)
    same = bool(facts) and facts.get("fingerprint") == source.fingerprint()
    trained = same or _place(facts.get("source")) == _place(source.name)
    ruled = trained and _rule(facts) != SplitRule()
    if ruled and not isinstance(data, Source):
        source = _opened(data, _rule(facts), task, ignore)
    cut = [name for name in ("test", "val") if name in source.made_splits]
    own = [name for name in ("test", "val") if name in source.splits and name not in cut]
    if split is None and own:
        return EvaluationData(
            source, own[0], f"{source.name} has no test split: measured on val" if own == ["val"] else ""
        )
    if split is None:
        split = cut[0] if trained and cut else "all"
    elif split not in cut:
        return EvaluationData(source, split, "")
    sentence = _sentence(source, split, trained, same, bool(facts))
    if ruled and isinstance(data, Source) and split != "all":
        sentence += f"; it is measured as it was opened, and training cut it by {_rule(facts)}"
    return EvaluationData(source, split, sentence)


def labelled(source: Source, name: str, single_class: bool = False) -> tuple[Split, list[str]]:
    """Takes the samples of a split that have a target, with a note on how many have none.

    Args:
        source: The data.
        name: The split.
        single_class: Whether every sample must have a single class; otherwise a target of any task will do.

    Returns:
        The split without those samples, and the notes (at most one).

    Raises:
        UserError: If no sample has a target.
    """
    full = source.split(name)
    known = (full.labels >= 0 if single_class else full.known).nonzero()[0]
    if not len(full):
        raise UserError(f"{source.name}: the split {name!r} has no samples")
    source.check_labelled()
    if not len(known):
        raise UserError(f"{source.name}: no sample of {name!r} has a label, so there is nothing to compare with")
    if len(known) == len(full):
        return full, []
    return full.subset(known), [f"{len(full) - len(known):,} samples of {name} have no label: left out"]


def _sentence(source: Source, split: str, trained: bool, unchanged: bool, told: bool) -> str:
    """Explains which samples are measured if the data set has no such split of its own.

    Args:
        source: The data.
        split: The split that is measured.
        trained: Whether the model was trained on this source.
        unchanged: Whether the source is the same now as it was then.
        told: Whether the model's card says at all what it was trained on.
    """
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
    """Returns the split rule in a model's card, or the default if there is none. Raises UserError if it is damaged."""
    stated = facts.get("split_rule")
    try:
        return SplitRule(**stated) if isinstance(stated, Mapping) else SplitRule()
    except TypeError as error:
        raise UserError(f"the model's card names a split rule that is not understood: {dict(stated or {})}") from error


def _ignored(facts: Mapping[str, Any]) -> tuple[int, ...]:
    """Returns the ids in masks that training ignored, by the model's card. Raises UserError if it is damaged."""
    stated = facts.get("ignore", ())
    if not isinstance(stated, (list, tuple)) or any(type(each) is not int or not 0 <= each < 65536 for each in stated):
        raise UserError(f"the model's card names ids of masks that are not understood: {stated!r:.200}")
    return tuple(stated)


def _opened(data: str | Path, rule: SplitRule, task: str | None, ignore: Sequence[int]) -> Source:
    return open_source(
        data,
        split_seed=rule.seed,
        val_fraction=rule.val_fraction,
        test_fraction=rule.test_fraction,
        task=task,
        ignore=ignore,
    )


def _place(name: Any) -> str:
    """Brings a source's name into the form in which names are compared: a path is made absolute."""
    text = str(name)
    return str(Path(text).resolve()) if Path(text).exists() else text
