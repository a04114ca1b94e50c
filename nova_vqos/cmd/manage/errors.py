# SPDX-License-Identifier: Apache-2.0
"""The error that an operator sees, in one line."""


class ManageError(Exception):
    """A command cannot go on; the text says why, and what to do."""
