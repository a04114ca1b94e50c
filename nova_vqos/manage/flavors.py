# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.


"""Flavors as Nova has them now, read to be pushed."""

from collections.abc import Collection, Iterable, Mapping
import typing as ty

from nova_vqos import policy as policies
from nova_vqos import pushed
from nova_vqos.manage import errors

# The first in which flavors are listed with their extra specs.
_MICROVERSION = '2.61'
_PAGE = 500
# A list without an end is none.
_MOST = 20_000


class Flavor(ty.NamedTuple):
    """A flavor of Nova's.

    :ivar flavor_id: that users know it by
    """

    flavor_id: str
    name: str
    vcpus: int
    extra_specs: Mapping[str, str]


def read_all(compute: ty.Any) -> list[Flavor]:
    """All flavors, also private ones, as far as the credentials allow.

    :param compute: a session's adapter for Nova, as openstacksdk's
        ``connection.compute``
    :raises ManageError: when Nova does not tell, or has too many
    """
    found: list[Flavor] = []
    query = {'is_public': 'None', 'limit': str(_PAGE)}
    while page := _page(compute, query):
        found += [_flavor(fields) for fields in page]
        if len(found) > _MOST:
            raise errors.ManageError(
                f'Nova has more than {_MOST} flavors, or does not page')
        query['marker'] = found[-1].flavor_id
    return found


def select(flavors: Iterable[Flavor],
           given: Collection[str]) -> list[Flavor]:
    """Those that are given, by id or by name; none given: all.

    :raises ManageError: when there is one that Nova does not have
    """
    flavors = list(flavors)
    if not given:
        return flavors
    by_name = {flavor.name: flavor for flavor in flavors}
    by_id = {flavor.flavor_id: flavor for flavor in flavors}
    unknown = [name for name in given if name not in by_id
               and name not in by_name]
    if unknown:
        raise errors.ManageError(
            f'Nova has no flavor {", ".join(map(repr, unknown))}')
    found = [by_id.get(name) or by_name[name] for name in given]
    return list({flavor.flavor_id: flavor for flavor in found}.values())


def overrides(flavors: Iterable[Flavor]) -> pushed.Overrides:
    """What is to be pushed of flavors; of one without our keys the defaults.

    :returns: without a generation
    :raises ManageError: when they are too many, or any of them cannot be
        honoured, naming all that cannot
    """
    flavors = list(flavors)
    if len(flavors) > pushed.MOST_FLAVORS:
        raise errors.ManageError(
            f'{len(flavors)} flavors are more than the {pushed.MOST_FLAVORS} '
            'that agents keep: name those to be pushed by --flavor')
    found, wrong = {}, []
    for flavor in flavors:
        try:
            found[flavor.flavor_id] = pushed.of_flavor(
                flavor.name, flavor.vcpus, flavor.extra_specs)
        except policies.PolicyError as error:
            wrong.append(f'flavor {flavor.name} ({flavor.flavor_id}): {error}')
    if wrong:
        raise errors.ManageError(
            f'nothing is pushed, since {len(wrong)} flavors cannot be '
            f'honoured: {"; ".join(wrong)}')
    return found


def _page(compute: ty.Any, query: Mapping[str, str]) -> list[ty.Any]:
    # NOTE: not openstacksdk's list of flavors: there nobody can tell extra
    # specs that Nova hides from a flavor that has none.
    from openstack import exceptions

    from nova_vqos.manage import nova
    try:
        answer = compute.get('/flavors/detail', params=dict(query),
                             microversion=_MICROVERSION)
        exceptions.raise_from_response(answer)
        found = answer.json()['flavors']
    except nova.ERRORS as error:
        raise nova.failure(error) from error
    except (KeyError, TypeError, ValueError) as error:
        raise errors.ManageError(
            'what Nova answers is no list of flavors') from error
    if not isinstance(found, list):
        raise errors.ManageError('what Nova answers is no list of flavors')
    return found


def _flavor(fields: ty.Any) -> Flavor:
    """:raises ManageError: when it is none, or its extra specs are hidden"""
    try:
        found = Flavor(fields['id'], fields['name'], fields['vcpus'],
                       fields.get('extra_specs'))
    except (KeyError, TypeError, AttributeError) as error:
        raise errors.ManageError(
            'what Nova answers is no list of flavors') from error
    if not isinstance(found.extra_specs, Mapping):
        raise errors.ManageError(
            f'Nova does not tell the extra specs of flavor {found.name}: give '
            "the credentials of an administrator, whom Nova's policy "
            'os_compute_api:os-flavor-extra-specs:index allows to see them')
    return found
