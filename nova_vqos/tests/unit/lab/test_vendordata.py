# SPDX-License-Identifier: Apache-2.0
"""What a guest read, by its console."""

import pytest

from nova_vqos_lab import vendordata

ANSWER = 'vqos-vendordata {"static": {}, "vqos": {"promised_cu": 30}}\n'


@pytest.mark.parametrize('console, read', [
    ('', []),
    ('booting\n', []),
    (ANSWER + 'noise\n' + ANSWER.replace('30', '40'), [30, 40]),
    # The answer of now is being printed.
    (ANSWER + ANSWER.replace('30', '40')[:-3], [30]),
    # Nova did not answer.
    (ANSWER + 'vqos-vendordata \n', [30]),
    # The service did not.
    ('vqos-vendordata {"static": {}, "vqos": {}}\n', []),
    # Nova has no such target.
    ('vqos-vendordata {"static": {}}\n', [])])
def test_whole_answers_count(console, read):
    assert [found['promised_cu'] for found
            in vendordata.answers(console)] == read
