# SPDX-License-Identifier: Apache-2.0
"""Texts of others, made harmless for logs and terminals.

A new line in a text of another host could pass for a line of the log, and an
escape sequence change what a terminal shows.
"""

import logging
import unicodedata

# Control, format and surrogate characters, and ends of lines. Other spaces
# than the usual one are not printable for Python, but names have them.
_HARMFUL = ('Cc', 'Cf', 'Cs', 'Cn', 'Co', 'Zl', 'Zp')


def one_line(text: str) -> str:
    """The text, with an escape such as ``\\n`` for what is not printable."""
    return _without(text, '')


def document(text: str) -> str:
    """The same, but for the ends of lines, and tabulators."""
    return _without(text, '\n\t')


def _without(text: str, kept: str) -> str:
    # For nearly all texts that is all.
    if text.isprintable():
        return text
    return ''.join(
        one.encode('unicode_escape').decode('ascii')
        if one not in kept and unicodedata.category(one) in _HARMFUL else one
        for one in text)


class _OneLineRecord(logging.LogRecord):
    def getMessage(self) -> str:
        return one_line(super().getMessage())


def log_in_one_line() -> None:
    """Have each message that this process logs be one printable line.

    Tracebacks still come in lines of their own.
    """
    logging.setLogRecordFactory(_OneLineRecord)
