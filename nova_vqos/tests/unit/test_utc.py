# SPDX-License-Identifier: Apache-2.0
"""Times as texts."""

import datetime

import pytest

from nova_vqos import utc


def test_a_time_survives_the_way_to_a_text_and_back():
    assert utc.text(0) == '1970-01-01T00:00:00+00:00'
    assert utc.parse(utc.text(1.6e9)).timestamp() == 1.6e9


def test_now():
    age = datetime.datetime.now(datetime.UTC) - utc.parse(utc.text())
    assert datetime.timedelta() <= age < datetime.timedelta(seconds=60)


@pytest.mark.parametrize(('given', 'at_s'), [
    ('1970-01-01T00:01:00', 60), ('1970-01-01T01:01:00+01:00', 60)])
def test_zones(given, at_s):
    assert utc.parse(given).timestamp() == at_s


def test_no_time():
    with pytest.raises(ValueError):
        utc.parse('now')
