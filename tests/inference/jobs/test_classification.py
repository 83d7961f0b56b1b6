"""The answer of a classifier, from logits to the lines of a terminal; one answer for predictor and server alike."""

import numpy as np
import pytest

from vitrail.errors import UserError
from vitrail.inference.engines.facts import ExportMetadata
from vitrail.inference.jobs.predictions import PredictionRows
from vitrail.tasks.answers import AnswerOptions, Guess
from vitrail.tasks.base import Meaning
from vitrail.tasks.classification.answer import PART, ClassColumns, Prediction


def most_likely(logits: np.ndarray, top: int) -> tuple[Guess, ...]:
    meaning = Meaning(("a", "b", "c"), {"a": "the first"})
    return PART.prediction(None, logits, None, meaning, AnswerOptions(top)).top


def test_scores_are_a_softmax_in_double_precision_and_ties_go_to_the_earlier_class():
    logits = np.array([1.0, 3.0, 3.0], np.float32)
    first, second, third = most_likely(logits, 5)
    assert [first.label, second.label, third.label] == ["b", "c", "a"]
    assert third.description == "the first"
    expected = np.exp(logits.astype(np.float64)) / np.exp(logits.astype(np.float64)).sum()
    assert [first.score, third.score] == pytest.approx([expected[1], expected[0]], abs=1e-15)
    assert most_likely(logits, 1) == (first,)
    assert most_likely(np.array([1000.0, 0.0, 0.0], np.float32), 1)[0].score == 1.0, "nothing overflows"


PREDICTION = Prediction("x.png", (Guess("ant", "an insect", 0.5), Guess("b\x1b[1m", "", 0.25)))


def test_a_terminal_shows_a_bar_a_class_and_nothing_that_moves_its_cursor():
    columns = ClassColumns(2)
    assert columns.lines(columns.row(PREDICTION)) == [
        " 50.0%  ██████████            ant       an insect",
        " 25.0%  █████                 b\\x1b[1m",
    ]
    unsure = ClassColumns(2, threshold=0.6)
    assert unsure.lines(unsure.row(PREDICTION))[0] == "unknown: no class is likely enough"
    assert columns.lines(columns.row(Prediction("y.png", error="is empty"))) == []


def test_a_threshold_adds_a_label_to_rows_columns_and_schema():
    plain, labelled = ClassColumns(1), ClassColumns(1, threshold=0.5)
    assert list(plain.row(PREDICTION)) == ["path", "top", "error"]
    assert list(labelled.row(PREDICTION)) == ["path", "label", "top", "error"]
    assert labelled.row(PREDICTION)["label"] == "ant"
    assert plain.names == ["path", "label1", "score1", "error"]
    assert labelled.names == ["path", "label", "label1", "score1", "error"]
    assert plain.schema().names == ["path", "top", "error"]
    assert labelled.schema().names == ["path", "label", "top", "error"]
    assert (plain.given, labelled.given) == ("--top 1 without --threshold", "--top 1 with --threshold")


def test_descriptions_have_columns_where_a_model_has_any(model):
    facts = ExportMetadata.of(model.config, model.card)
    assert "description1" in PredictionRows(AnswerOptions(1)).columns(facts).names
    bare = ExportMetadata(facts.config, facts.preprocessing, facts.label_names)
    assert "description1" not in PredictionRows(AnswerOptions(1)).columns(bare).names


def test_what_no_score_can_be_is_refused():
    with pytest.raises(UserError, match="--top must be at least 1"):
        PART.check(AnswerOptions(top=0), Meaning())
    with pytest.raises(UserError, match="--threshold 60"):
        PART.check(AnswerOptions(threshold=60), Meaning())
