# SPDX-License-Identifier: Apache-2.0
"""What libvirt's hook needs of ``typing``, without its import.

That import takes 4 ms, and each migration would wait for it. Type checkers see
the originals.
"""

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:
    import collections

    class _MakesNamedTuples(type):
        """Makes a named tuple of each class that derives from NamedTuple."""

        def __new__(mcs, name, bases, namespace):
            if not bases:
                return super().__new__(mcs, name, bases, namespace)
            # A class of its own: Python 3.14 keeps no annotations in the
            # namespace.
            fields = type(name, (), dict(namespace)).__annotations__
            defaults = [namespace.pop(field) for field in fields
                        if field in namespace]
            base = collections.namedtuple(name, fields, defaults=defaults)
            return type(name, (base,), {'__slots__': (), **namespace})

    class NamedTuple(metaclass=_MakesNamedTuples):
        """As ``typing.NamedTuple``."""
