"""Trains one of our models in a training loop of your own, and saves it as a bundle that every command can use.

    python examples/own_training_loop.py FOLDER

It draws its pictures itself, takes a few seconds, and writes FOLDER/bundle. The loop is plain PyTorch: a model of ours
is an `nn.Module` from images [batch, channels, rows, columns] to logits [batch, classes].
"""

import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import vitrail

SIDE = 32
CLASSES = ("disc", "rows", "columns")


def draw(count: int, seed: int) -> tuple[list[np.ndarray], torch.Tensor]:
    """Draws discs and stripes, uint8 [SIDE, SIDE, 3], and returns them with their classes [count]."""
    random = np.random.default_rng(seed)
    down, right = np.mgrid[:SIDE, :SIDE]
    pictures, labels = [], random.integers(len(CLASSES), size=count)
    for label in labels:
        (top, left), size = random.integers(10, SIDE - 10, 2), random.integers(5, 10)
        disc = np.hypot(down - top, right - left) < size
        shape = (disc, (down + top) % size < size / 2, (right + left) % size < size / 2)[label]
        ink, paper = random.integers(128, 256, 3), random.integers(0, 128, 3)
        pictures.append(np.where(shape[..., None], ink, paper).astype(np.uint8))
    return pictures, torch.from_numpy(labels)


def main(folder: Path) -> float:
    """Trains the model and returns the share of new pictures that the saved bundle gets right."""
    torch.manual_seed(0)
    config = vitrail.ModelConfig(
        image_size=SIDE, patch_size=8, width=64, depth=3, num_heads=4, mlp_dim=128, num_classes=len(CLASSES)
    )
    model = vitrail.create(config)
    # The card goes with the model: it says how pictures are prepared and what the outputs are called.
    half = (0.5, 0.5, 0.5)
    model.card.preprocessing = vitrail.Preprocessing(image_size=SIDE, mean=half, std=half, crop_fraction=1.0)
    model.card.label_names = CLASSES

    pictures, labels = draw(600, seed=0)
    images = vitrail.preprocess(model, pictures)  # the same preparation as predict's
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    model.train()
    for step in range(80):
        batch = torch.randint(len(images), (64,))
        loss = F.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 19:
            print(f"step {step + 1}: loss {loss.item():.3f}")
    model.eval()

    vitrail.save(model, folder / "bundle")
    new, truth = draw(100, seed=1)
    answers = vitrail.predict(folder / "bundle", new)
    right = sum(answer.top[0].label == CLASSES[label] for answer, label in zip(answers, truth, strict=True))
    print(
        f"{right} of {len(new)} new pictures right; try: vitrail inspect {folder / 'bundle'} --out {folder / 'inside'}"
    )
    return right / len(new)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
