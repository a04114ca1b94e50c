# SPDX-License-Identifier: Apache-2.0
"""The text of samples, beside prometheus_client's own."""

import hypothesis
from hypothesis import strategies
import prometheus_client

from nova_vqos.metrics import exposition
from nova_vqos.metrics import families
from nova_vqos.tests.fixtures import library_text
from nova_vqos.tests.fixtures import metrics


def by_library(groups):
    """:returns: the text that prometheus_client makes"""
    return prometheus_client.generate_latest(
        library_text.Collector(lambda: groups)).decode()


def texts(count):
    return strategies.tuples(*[strategies.text(max_size=8)] * count)


def samples_after(names):
    """Samples of all families whose names of labels begin with some."""
    chosen = [family for family in families.ALL if names == (
        families.SERVER_LABELS if family.labels[:2] == families.SERVER_LABELS
        else ())]
    return strategies.sampled_from(chosen).flatmap(
        lambda family: strategies.tuples(
            strategies.just(family), texts(len(family.labels) - len(names)),
            strategies.one_of(
                strategies.none(), strategies.booleans(),
                strategies.integers(-2**53, 2**53),
                strategies.floats(allow_nan=False))))


def groups_with(names):
    return strategies.builds(
        families.Group,
        texts(len(names)).map(
            lambda values: dict(zip(names, values, strict=True))),
        strategies.lists(samples_after(names), max_size=10))


@hypothesis.given(strategies.lists(strategies.one_of(
    groups_with(()), groups_with(families.SERVER_LABELS)), max_size=4))
def test_any_samples_read_as_those_of_the_library(groups):
    text = exposition.text(groups)
    assert metrics.parse(text) == metrics.parse(by_library(groups))
    assert text.count('\n') == by_library(groups).count('\n')


def test_no_sample_is_no_text():
    assert exposition.text([]) == ''


def test_labels_of_one_length_keep_their_names():
    """Labels are kept as text: those of another family are not theirs."""
    groups = [families.Group(
        dict(zip(families.SERVER_LABELS, (metrics.UUID, metrics.PROJECT),
                 strict=True)),
        [(family, ('low',), 1.0)
         for family in (families.BILLED, families.PREDICTED)])]
    assert metrics.parse(exposition.text(groups)) == metrics.parse(
        by_library(groups))
