# SPDX-License-Identifier: Apache-2.0
import copy
import pickle
import typing as ty

import pytest

from nova_vqos import light_typing


class Point(light_typing.NamedTuple):
    """A point."""

    x: int
    y: 'int' = 2

    @property
    def total(self) -> int:
        return self.x + self.y

    @classmethod
    def origin(cls) -> 'Point':
        return cls(0, 0)


class Original(ty.NamedTuple):
    """A point."""

    x: int
    y: 'int' = 2


def test_it_is_as_the_original():
    assert Point(1) == Original(1) == (1, 2)
    assert repr(Point(1)) == repr(Original(1)).replace('Original', 'Point')
    for name in ('_fields', '_field_defaults', '__doc__', '__module__'):
        assert getattr(Point, name) == getattr(Original, name), name
    assert ty.get_type_hints(Point) == {'x': int, 'y': int}
    assert Point(1)._replace(y=5)._asdict() == {'x': 1, 'y': 5}
    assert hash(Point(1)) == hash((1, 2))


def test_it_has_methods():
    assert Point(3).total == 5
    assert Point.origin() == (0, 0)
    assert type(Point(1)._replace(x=2)) is Point


def test_it_is_copied_and_pickled():
    assert copy.deepcopy(Point(1)) == Point(1)
    assert type(pickle.loads(pickle.dumps(Point(1)))) is Point


def test_it_does_not_change():
    with pytest.raises(AttributeError):
        Point(1).x = 2
    with pytest.raises(AttributeError):
        Point(1).z = 2
    with pytest.raises(TypeError, match='missing 1 required'):
        Point()


def test_a_class_of_it_is_an_ordinary_one():
    class Named(Point):
        name = 'a point'

    assert Named(1).total == 3
    assert Named(1).name == 'a point'
