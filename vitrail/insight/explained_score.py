"""Computes the score that a map explains: what a model gives one class of one image."""

import difflib

import torch
from torch import Tensor

from vitrail.errors import UserError
from vitrail.insight.attention import evaluating, to_model
from vitrail.models.vit import ViT
from vitrail.tasks import task
from vitrail.tasks.classification.top1 import best


def has_classes(model: ViT) -> bool:
    """Tells whether the model has a trained head that tells classes apart, of pictures or of their patches; one that is
    not trained is all zeros."""
    head = model.head
    if not task(model.config.task).target.single_class and model.config.pooling != "patches":
        return False
    return isinstance(head, torch.nn.Linear) and bool(head.weight.detach().any())


def why_no_classes(model: ViT) -> str:
    """Returns why a model cannot tell classes apart."""
    target = task(model.config.task).target
    if target.single_class or model.config.pooling == "patches":
        return "the model has no trained head"
    return f"the model gives {target.plural}"


class ExplainedScore:
    """One class of one image: the class that was named, or the one that the model predicts.

    A head that reads every patch gives each a class: the class is the one that most patches have, and its score is the
    mean over the patches that have it.

    For a model without classes it is the image's own features: the score is how much of them a changed image keeps.
    """

    def __init__(self, model: ViT, image: Tensor, label: int | None = None):
        self.label: int | None = None
        self.probability: float | None = None
        with evaluating(model), torch.inference_mode():
            prepared = to_model(model, image[None])
            encoded = model.encode(model.embed(prepared), model.grid_of(prepared))
            self.patches: Tensor | None = None
            if has_classes(model) and model.config.pooling == "patches":
                scores = model.classify(model.pool(encoded), encoded)[0].float()  # (patches, classes)
                given = scores.argmax(dim=1)
                self.label = int(given.bincount().argmax()) if label is None else label
                chances = scores.softmax(dim=1)[:, self.label]
                own = given == self.label
                self.patches = (own if bool(own.any()) else chances == chances.max()).nonzero()[:, 0]
                self.probability = float(chances[self.patches].mean())
            elif has_classes(model):
                scores = model.classify(model.pool(encoded), encoded)[0].float()
                self.label = int(best(scores)) if label is None else label
                self.probability = float(scores.softmax(0)[self.label])
            else:
                features = model.pool(encoded)[0]
                features = features.mean(dim=0) if model.config.pooling == "patches" else features
                self.direction = features / features.norm().clamp_min(1e-12)

    def score(self, model: ViT, encoded: Tensor) -> Tensor:
        """Computes the class's log-odds against all others, or the projection on the image's own features, [batch]."""
        if self.label is None:
            features = model.pool(encoded)
            features = features.mean(dim=1) if model.config.pooling == "patches" else features
            return features @ self.direction.clone()
        logits = model.classify(model.pool(encoded), encoded)
        if self.patches is not None:
            chosen = logits[:, self.patches.clone()]  # outside of inference mode a tensor like any other
            return self._log_odds(chosen.flatten(0, 1)).unflatten(0, chosen.shape[:2]).mean(dim=1)
        return self._log_odds(logits)

    def _log_odds(self, logits: Tensor) -> Tensor:
        """Computes the log-odds of the class against all others, [batch], from logits [batch, classes]."""
        if logits.shape[1] == 1:
            return logits[:, 0]
        own = torch.zeros_like(logits, dtype=torch.bool)
        own[:, self.label] = True
        return logits[:, self.label] - logits.masked_fill(own, -torch.inf).logsumexp(dim=1)


def find_class(model: ViT, name: str) -> int:
    """Finds the index of a class by its name, by words that describe it, or by its number if the model has no names."""
    labels, words = model.card.label_names, model.card.label_descriptions
    if not has_classes(model):
        raise UserError(f"--class: {why_no_classes(model)}, so there are no classes to ask about")
    if not labels:
        if name.isdecimal() and int(name) < model.config.num_classes:
            return int(name)
        raise UserError(f"--class {name}: the model has no class names; give a number below {model.config.num_classes}")
    spoken = [words.get(label, label) for label in labels]
    for names in (list(labels), spoken):
        if name in names:
            return names.index(name)
    wanted = name.casefold()
    parts = [{each.strip().casefold() for each in text.split(",")} for text in spoken]
    found = [index for index, each in enumerate(parts) if wanted in each]
    found = found or [index for index, text in enumerate(spoken) if wanted in text.casefold()]
    if len(found) == 1:
        return found[0]
    if found:
        listed = "; ".join(spoken[index] for index in found[:5])
        raise UserError(f"--class {name}: could be any of {len(found)} classes ({listed}); give the whole name")
    near = difflib.get_close_matches(name, [*labels, *spoken], n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"the first of {len(labels)} is {spoken[0]!r}"
    raise UserError(f"--class {name}: there is no such class; {hint}")


def class_name(model: ViT, label: int | None) -> str | None:
    """Returns what to call a class for a person: its description if there is one, else its name, else its number."""
    if label is None:
        return None
    if label >= len(model.card.label_names):
        return str(label)
    name = model.card.label_names[label]
    return model.card.label_descriptions.get(name, name)
