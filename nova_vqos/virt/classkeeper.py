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

"""Which class of unlike pCPUs each server of a host is kept in.

What a host has is read from all its domains, stopped ones included, since
these still hold what they claimed.
"""

import time
import typing as ty

import nova.conf
from oslo_log import log as logging

from nova_vqos import cpu_classes
from nova_vqos import domain_xml
from nova_vqos import policy as policies
from nova_vqos.virt import admission

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

# From the check of a live migration to the guest's arrival disks may have to
# be fetched. A choice whose guest never came, and that nobody cleaned up
# after, holds its room for so long.
_CHOICE_LIFE_S = 600.0


class _Choice(ty.NamedTuple):
    server: cpu_classes.Server
    made_at_s: float


class ClassKeeper:
    """Keeps each server of a host in one class of its pCPUs.

    NOTE: no locks, see :mod:`nova_vqos.virt.driver`. From the look at all
    choices to the new one nothing is waited for, so that under eventlet no
    two servers get the same room. Where Nova runs on threads two of them may,
    within microseconds of each other; both are still capped right.
    """

    def __init__(self, list_guests):
        """
        :param list_guests: gives nova.virt.libvirt.guest.Guest of all domains
        """
        self._list_guests = list_guests
        # By UUID, of servers whose domain is still to come.
        self._chosen = {}
        # By UUID, servers whose guests are being made anew.
        self._last = {}

    def rooms(self, report, *, but=None):
        """What servers leave of the host's classes of pCPUs.

        :param report: :class:`nova_vqos.host_report.HostReport` of the host
        :param but: UUID of a server that is not counted
        :returns: nothing where all pCPUs are equal
        """
        return self._rooms(report.classes, but)

    def all_rooms(self, report):
        """What servers leave of all classes, be it one alone.

        Of one alone only a weigher wants to know: nothing is returned where
        it cannot be told.

        :param report: :class:`nova_vqos.host_report.HostReport` of the host
        """
        try:
            return self._rooms(report.all_classes, None)
        except Exception as error:
            if report.classes:
                raise
            LOG.warning('The scheduler is not told how many CPU units are '
                        'left: %s', error)
            return ()

    def _rooms(self, classes, but):
        if not classes:
            return ()
        oldest_s = time.monotonic() - _CHOICE_LIFE_S
        self._drop(lambda _uuid, choice: choice.made_at_s < oldest_s)
        for uuid, last in list(self._last.items()):
            if last.made_at_s < oldest_s:
                # It failed before there was a guest again.
                self._last.pop(uuid, None)
        # NOTE: before, since while domains are read, a choice may become one
        # that was not there to be read yet.
        choices = dict(self._chosen)
        servers = self._servers()
        self._drop(lambda uuid, choice: servers.get(uuid) == choice.server)
        choices |= self._chosen
        # Those without a domain for a moment keep their room.
        servers = {uuid: last.server for uuid, last
                   in list(self._last.items())} | servers
        servers |= {uuid: choice.server for uuid, choice in choices.items()}
        servers.pop(but, None)
        return cpu_classes.with_servers(
            classes, servers.values(),
            reserved_cu=CONF.vqos.reserved_cu,
            allocation_ratio=CONF.vqos.allocation_ratio)

    def choose(self, uuid, policy, report):
        """The pCPUs for a server that is new to the host.

        :param policy: of the server, with units
        :returns: None where all pCPUs are equal
        :raises nova_vqos.virt.admission.CannotServe: when no class fits
        """
        rooms = self.rooms(report, but=uuid)
        if not rooms:
            return None
        try:
            room = cpu_classes.choose(policy, rooms,
                                      tick_us=report.profile.tick_us)
        except cpu_classes.NoClassFits as error:
            raise admission.CannotServe(str(error)) from error
        return self._note_choice(uuid, policy, room)

    def keep(self, uuid, policy, report):
        """The pCPUs for a server that has been on the host before.

        :param policy: of the server, with units
        :returns: None where all pCPUs are equal, or no class fits
        """
        rooms = self.rooms(report, but=uuid)
        if not rooms:
            return None
        last = self._last.get(uuid)
        room = cpu_classes.keep(policy, rooms, last and last.server.pcpus,
                                tick_us=report.profile.tick_us)
        if room is None:
            LOG.warning('Server %(uuid)s is kept in no class of pCPUs: '
                        '%(error)s', {'uuid': uuid, 'error':
                                      cpu_classes.NoClassFits(policy, rooms)})
            return None
        return self._note_choice(uuid, policy, room)

    def note_last(self, uuid, guest):
        """Remember where a guest may run, before it is undone.

        :param guest: nova.virt.libvirt.guest.Guest
        """
        server = _server_of(guest)
        if server is not None:
            self._last[uuid] = _Choice(server, time.monotonic())

    def forget_last(self, uuid):
        """The guest was made anew."""
        self._last.pop(uuid, None)

    def forget_choice(self, uuid):
        """The guest does not come."""
        self._chosen.pop(uuid, None)

    def _note_choice(self, uuid, policy, room):
        self._chosen[uuid] = _Choice(
            cpu_classes.Server(policy.units, room.pcpus), time.monotonic())
        return room.pcpus

    def _drop(self, is_done):
        """Drop the choices of which is_done(uuid, choice)."""
        for uuid, choice in list(self._chosen.items()):
            if is_done(uuid, choice):
                self._chosen.pop(uuid, None)

    def _servers(self):
        """{UUID: server with units} of all domains."""
        found = {guest.uuid: _server_of(guest)
                 for guest in self._list_guests()}
        return {uuid: server for uuid, server in found.items()
                if server is not None}


def _server_of(guest):
    """A guest as a server with units, None if it is none."""
    try:
        domain = domain_xml.read(guest.get_xml_desc())
        policy = (None if domain.extra_specs is None else
                  policies.parse(domain.extra_specs, domain.vcpus or 0))
    except policies.PolicyError:
        # It has no units that could be counted, as the agent says.
        return None
    except Exception as error:
        # It may be gone by now.
        LOG.warning('A domain is not counted among those of its class of '
                    'pCPUs: %s', error)
        return None
    if policy is None or policy.units is None:
        return None
    return cpu_classes.Server(policy.units, domain.pcpus)
