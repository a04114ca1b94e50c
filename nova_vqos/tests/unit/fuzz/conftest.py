# SPDX-License-Identifier: Apache-2.0
"""Damaged input for all that reads what others wrote.

Each test gives damaged forms of valid input to one reader, which may raise
what its docstring says, and nothing else. Each is one pass of some hundred
inputs; with ``--fuzz-minutes`` it goes on with others.
"""

import time

import hypothesis
import pytest

_EXAMPLES = 300


@pytest.fixture
def fuzz(pytestconfig):
    """Tries inputs.

    :returns: called with a strategy, and with what is done with each input
    """
    end_s = time.monotonic() + 60 * pytestconfig.getoption('--fuzz-minutes')

    def tried(strategy, check):
        settings = hypothesis.settings(
            max_examples=_EXAMPLES, print_blob=True, database=None,
            suppress_health_check=list(hypothesis.HealthCheck))

        def attempt(given):
            check(given)

        settings(hypothesis.given(given=strategy)(attempt))()
        while time.monotonic() < end_s:
            hypothesis.settings(settings, derandomize=False)(
                hypothesis.given(given=strategy)(attempt))()
    return tried
