# SPDX-License-Identifier: Apache-2.0
"""Times as texts: ISO 8601, UTC, whole seconds."""

import datetime


def text(at_s: float | None = None, timespec: str = 'seconds') -> str:
    """A time as a text, such as ``2026-11-22T09:30:00+00:00``.

    :param at_s: seconds since 1970; None: now
    :param timespec: how exactly, see :meth:`datetime.datetime.isoformat`
    """
    at = (datetime.datetime.now(datetime.UTC) if at_s is None
          else datetime.datetime.fromtimestamp(at_s, datetime.UTC))
    return at.isoformat(timespec=timespec)


def parse(given: str) -> datetime.datetime:
    """The inverse of :func:`text`; a time without a zone is UTC.

    :raises ValueError: when it is no time
    """
    found = datetime.datetime.fromisoformat(given)
    return found if found.tzinfo else found.replace(tzinfo=datetime.UTC)
