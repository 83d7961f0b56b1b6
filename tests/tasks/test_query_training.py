"""Fine-tuning with a head of queries: from a plain ViT, from one that has queries, by a recipe."""

from dataclasses import replace

import pytest
import torch

import vitrail
from tests.tasks.test_query_head import TINY, trained
from tests.tasks.test_query_loss import blobs
from vitrail.checkpoints.load import adapt
from vitrail.config import ModelConfig, OptimizerConfig, TrainConfig
from vitrail.errors import UserError
from vitrail.inference.export import trace
from vitrail.inference.token_merging import merged
from vitrail.models.build import create
from vitrail.models.cost import memory
from vitrail.recipes import recipe
from vitrail.run import _model
from vitrail.tasks.base import LossSettings
from vitrail.tasks.segmentation.query_loss import QueryLoss
from vitrail.train import fit
from vitrail.training.optimizer import build_optimizer
from vitrail.transfer import chosen_config, finetuned_config

PLAIN = ModelConfig(image_size=32, patch_size=8, width=16, depth=2, num_heads=2, mlp_dim=32, num_classes=5)
QUERIES = {"head": "queries", "queries": 6, "query_layers": 2, "upscale_blocks": 1}


@pytest.fixture
def plain(tmp_path):
    torch.manual_seed(0)
    vitrail.save(create(PLAIN), tmp_path / "plain")
    return str(tmp_path / "plain")


def chosen(model, **changes):
    """What `vitrail finetune MODEL --data shapes --model.head queries` trains, in a few steps."""
    config = chosen_config(model, "shapes")
    schedule = replace(config.schedule, warmup_steps=0)
    changes = {"steps": 1, "batch_size": 4, "schedule": schedule, **changes}
    return config.with_(model=config.model.with_(**QUERIES), **changes)


def test_a_plain_vit_is_fine_tuned_with_queries(plain, tmp_path, capsys):
    done = fit(chosen(plain, steps=2, evaluate_every=2), tmp_path / "run")
    said = capsys.readouterr().err
    assert "a head of queries has no closed form, so there is no probe: it begins at random" in said
    assert "the head is new: 6 queries, at random" in said
    assert "weights 0" not in said
    assert done.metrics["n"] == 100
    model = vitrail.load(tmp_path / "run")
    assert (model.config.head, model.config.num_classes, model.config.query_tokens) == ("queries", 4, 6)
    assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 4, 8, 8)
    assert not (tmp_path / "run" / "probe").exists()


def test_the_encoder_is_the_plain_models_and_the_head_random(plain):
    config = TrainConfig(model=PLAIN.with_(num_classes=4, task="segmentation", **QUERIES), init_from=plain, steps=1)
    torch.manual_seed(1)
    model, before = _model(config), vitrail.load(plain).state_dict()
    own = model.state_dict()
    assert all(torch.equal(own[name], before[name]) for name in before if not name.startswith("head"))
    assert float(model.head.queries.detach().std()) == pytest.approx(1.0, abs=0.3)
    assert model.card.notes[-1] == "the head is new: 6 queries, at random"


def test_from_queries_to_other_classes_only_their_linear_map_is_new():
    model = trained(TINY)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    after = adapt(model, 7, None).state_dict()
    assert not after["head.classes.weight"].any()
    assert after["head.classes.weight"].shape == (8, 16)
    kept = [name for name in before if not name.startswith("head.classes")]
    assert all(torch.equal(before[name], after[name]) for name in kept)


def test_a_recipe_brings_its_head_and_the_model_its_encoder(plain, tmp_path):
    config = finetuned_config(recipe("segment-linear"), plain, 32)
    assert (config.model.head, config.model.width) == ("linear", 16)
    with pytest.raises(UserError, match="set query_layers to 2 or less"):
        finetuned_config(recipe("segment-queries"), plain, 32)
    deeper = tmp_path / "deeper"
    vitrail.save(create(PLAIN.with_(depth=3)), deeper)
    config = finetuned_config(recipe("segment-queries"), str(deeper), 32)
    assert (config.model.head, config.model.query_layers, config.model.depth) == ("queries", 3, 3)
    vitrail.save(create(TINY), tmp_path / "queries")
    assert finetuned_config(recipe("segment-linear"), str(tmp_path / "queries"), 48).model.head == "linear"


def test_it_is_exported_with_any_batch():
    model = trained(TINY)
    images = torch.randn(3, 3, 48, 48)
    with torch.no_grad():
        logits, features = trace(model).module()(images)
        assert torch.allclose(logits, model(images), atol=1e-5)
        assert torch.allclose(features, model.features(images), atol=1e-5)


def test_quick_needs_a_closed_form(tmp_path):
    vitrail.save(trained(TINY), tmp_path / "queries")
    with pytest.raises(UserError, match="which a head of queries does not have"):
        vitrail.finetune(str(tmp_path / "queries"), "shapes", tmp_path / "run", quick=True)


def test_tokens_are_not_merged():
    with pytest.raises(UserError, match="whose masks need every patch in its place"):
        merged(trained(TINY), 2)


def test_a_loss_of_the_other_head_is_refused(plain, tmp_path):
    with pytest.raises(UserError, match="--objective cross_entropy: choose one of matched_masks"):
        fit(chosen(plain, objective="cross_entropy"), tmp_path / "run")


def test_memory_is_what_autograd_keeps():
    """Within 8 % of the bytes of the distinct tensors that autograd saves in a step, the weights aside."""
    model = create("Ti/16", num_classes=10, image_size=128, head="queries", queries=40).train()
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    weights = {shape for each in model.parameters() if each.ndim > 1 for shape in (each.shape, each.shape[::-1])}
    saved: dict[int, int] = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own and tensor.shape not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    loss = QueryLoss(LossSettings("matched_masks", 10))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        value = loss(loss.outputs(model, torch.randn(2, 3, 128, 128)), blobs(side=128), None)
    assert memory(model.config, 2, "adamw", 4)["activations"] == pytest.approx(sum(saved.values()), rel=0.08)
    assert value.requires_grad


def test_queries_do_not_decay_and_learn_at_the_full_rate():
    model = create(TINY)
    groups = build_optimizer(model, model.config, OptimizerConfig(lr=1.0, weight_decay=0.1, layer_decay=0.5))
    found = {id(each): group for group in groups.param_groups for each in group["params"]}
    queries, mask = found[id(model.head.queries)], found[id(model.head.mask_mlp[0].weight)]
    assert (queries["weight_decay"], queries["lr_scale"]) == (0.0, 1.0)
    assert (mask["weight_decay"], mask["lr_scale"]) == (0.1, 1.0)
