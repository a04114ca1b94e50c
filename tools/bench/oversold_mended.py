# SPDX-License-Identifier: Apache-2.0

"""Placement with the mend that doc/source/contributor/oversold.rst proposes.

A WSGI application for tools/bench/oversold.py: a claim that meets another one
is repeated, but as a whole, so that each attempt has a transaction of its own.
Run it with [placement] allocation_conflict_retry_count = 1, which ends the
repetition within the transaction.
"""

from placement import errors
from placement.handlers import allocation
import webob.exc

ATTEMPTS = 10

_set_allocations = allocation._set_allocations_for_consumer


def _repeat(req, schema):
    for _ in range(ATTEMPTS - 1):
        try:
            return _set_allocations(req, schema)
        except webob.exc.HTTPConflict as error:
            if error.comment != errors.CONCURRENT_UPDATE:
                raise
    return _set_allocations(req, schema)


allocation._set_allocations_for_consumer = _repeat

from placement.wsgi.api import application  # noqa: E402, F401
