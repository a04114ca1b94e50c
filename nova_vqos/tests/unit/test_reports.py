# SPDX-License-Identifier: Apache-2.0
"""What tests may leave in their reports."""

import logging


def test_what_no_encoding_has():
    """By xdist it would end the worker, and with it the level."""
    logging.getLogger(__name__).warning('damaged: %s', '\ud800')
