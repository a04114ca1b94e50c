# SPDX-License-Identifier: Apache-2.0
"""The text of samples, beside prometheus_client's own."""

import hypothesis
from hypothesis import strategies
import prometheus_client

from nova_vqos.metrics import exposition
from nova_vqos.metrics import families
from nova_vqos.tests.fixtures import library_text
from nova_vqos.tests.fixtures import metrics


def by_library(samples):
    """:returns: the text that prometheus_client makes"""
    return prometheus_client.generate_latest(
        library_text.Collector(lambda: samples)).decode()


def samples_of(family):
    return strategies.builds(
        families.Sample, strategies.just(family),
        strategies.tuples(*[strategies.text(max_size=8)] * len(family.labels)),
        strategies.floats(allow_nan=False))


@hypothesis.given(strategies.lists(
    strategies.sampled_from(families.ALL).flatmap(samples_of), max_size=20,
    unique_by=lambda sample: (sample.family.name, sample.labels)))
def test_any_samples_read_as_those_of_the_library(samples):
    text = exposition.text(samples)
    assert metrics.parse(text) == metrics.parse(by_library(samples))
    assert text.count('\n') == by_library(samples).count('\n')


def test_no_sample_is_no_text():
    assert exposition.text([]) == ''


def test_labels_of_one_length_keep_their_names():
    """Labels are kept as text: those of another family are not theirs."""
    labels = (metrics.UUID, metrics.PROJECT, 'low')
    samples = [families.Sample(family, labels, 1.0)
               for family in (families.BILLED, families.PREDICTED)]
    assert metrics.parse(exposition.text(samples)) == metrics.parse(
        by_library(samples))
