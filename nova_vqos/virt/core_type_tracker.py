# SPDX-License-Identifier: Apache-2.0
"""Which core type each server of a host runs on, and whether there is room.

Where all pCPUs are equal, room is Placement's business, unless vCPUs have to
pack ([vqos] packing = exact). What servers use is read from all domains of
the host, stopped ones included, since these still hold what they claimed.
"""

import time
import typing as ty

import nova.conf
from oslo_log import log as logging

from nova_vqos import core_types
from nova_vqos import domain_xml
from nova_vqos import policy as policies

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

# From the check of a live migration to the guest's arrival disks may have to
# be fetched. A choice whose guest never came, and was never cleaned up, holds
# its room for so long.
_CHOICE_LIFE_S = 600.0


class _Choice(ty.NamedTuple):
    server: core_types.Server
    made_at_s: float


class CoreTypeTracker:
    """Chooses a core type for each server of a host.

    NOTE: no locks, see :mod:`nova_vqos.virt.driver`. Between reading all
    choices and making the new one nothing waits, so that under eventlet no
    two servers get the same room. Where Nova runs on threads two of them may,
    within microseconds of each other; both are still capped right.
    """

    def __init__(self, host):
        """
        :param host: nova.virt.libvirt.host.Host
        """
        self._host = host
        # By UUID, of servers whose domain is still to come.
        self._chosen = {}
        # By UUID, servers whose guests are being made anew.
        self._last = {}

    def left_for_stats(self, report):
        """All core types with the room that servers leave, be it one alone.

        Of one alone only a weigher reads it: nothing is returned where it is
        not known.

        :param report: :class:`nova_vqos.virt.host_state.HostReport`
        """
        try:
            return self._left(report.all_core_types)
        except Exception as error:
            if report.unlike_core_types:
                raise
            LOG.warning('CPU units that are left cannot be counted, and the '
                        'scheduler prefers other hosts: %s', error)
            return ()

    def counts(self, report):
        """Whether the servers of a host count for the admission of others.

        :param report: :class:`nova_vqos.virt.host_state.HostReport`
        """
        return bool(_counted(report))

    def choose(self, candidate, report):
        """The pCPUs for a server that is new to the host.

        :param candidate: nova_vqos.virt.admission.Candidate with units
        :param report: :class:`nova_vqos.virt.host_state.HostReport`
        :returns: None where all pCPUs are equal
        :raises nova_vqos.core_types.NoCoreTypeFits: when no core type fits
        """
        left = self._left(_counted(report), but=candidate.uuid)
        if not left:
            return None
        return self._record(candidate, left, core_types.choose(
            candidate.policy, left, tick_us=report.profile.tick_us))

    def check_pinned(self, candidate, report):
        """Refuse a new server, with pins of Nova's, whose vCPUs do not pack.

        It holds no room before its domain is there.

        :param candidate: nova_vqos.virt.admission.Candidate with units
        :param report: :class:`nova_vqos.virt.host_state.HostReport`
        :raises nova_vqos.core_types.NoCoreTypeFits: when they do not
        """
        if not _is_exact():
            return
        servers = self._all_servers(report.pcpus, but=candidate.uuid)
        server = _server(candidate.policy, candidate.pcpus)
        if not all(one.packed.packs() for one in _with_servers(
                report.all_core_types, [*servers, server])
                if one.pcpus & candidate.pcpus):
            raise core_types.NoCoreTypeFits(
                candidate.policy, _with_servers(report.all_core_types,
                                                servers))

    def choose_again(self, candidate, report):
        """The pCPUs for a server that has been on the host before.

        :param candidate: nova_vqos.virt.admission.Candidate with units
        :param report: :class:`nova_vqos.virt.host_state.HostReport`
        :returns: None where all pCPUs are equal, or no core type fits
        """
        left = self._left(_counted(report), but=candidate.uuid)
        if not left:
            return None
        last = self._last.get(candidate.uuid)
        chosen = left[0] if len(left) == 1 else core_types.choose_again(
            candidate.policy, left, last and last.server.pcpus,
            tick_us=report.profile.tick_us)
        if chosen is None:
            LOG.warning('Server %(uuid)s runs on all core types: %(error)s', {
                'uuid': candidate.uuid,
                'error': core_types.NoCoreTypeFits(candidate.policy, left)})
            return None
        return self._record(candidate, left, chosen)

    def record_last(self, uuid, guest):
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

    def _record(self, candidate, left, chosen):
        """:returns: the pCPUs of the one chosen; None: there is no other"""
        self._chosen[candidate.uuid] = _Choice(
            _server(candidate.policy, chosen.pcpus), time.monotonic())
        return chosen.pcpus if len(left) > 1 else None

    def _left(self, all_core_types, but=None):
        """Core types with the room that servers leave.

        :param all_core_types: without any server; none: nothing is counted
        :param but: UUID of a server that is not counted
        """
        if not all_core_types:
            return ()
        shared = frozenset().union(*(one.pcpus for one in all_core_types))
        return _with_servers(all_core_types, self._all_servers(shared, but))

    def _all_servers(self, shared, but):
        """The servers with units, also those whose domain is still to come.

        :param shared: pCPUs of a server that may run on all
        :param but: UUID of a server that is left out; None: all count
        """
        oldest_s = time.monotonic() - _CHOICE_LIFE_S
        _drop(self._chosen, lambda _, choice: choice.made_at_s < oldest_s)
        # Servers that failed before there was a guest again.
        _drop(self._last, lambda _, last: last.made_at_s < oldest_s)
        # NOTE: before, since while domains are read, a choice may become one
        # that was not there to be read yet.
        choices = dict(self._chosen)
        servers = self._servers(shared)
        _drop(self._chosen,
              lambda uuid, choice: servers.get(uuid) == choice.server)
        choices |= self._chosen
        # Servers that have no domain for a moment hold their room.
        servers = {uuid: last.server for uuid, last
                   in list(self._last.items())} | servers
        servers |= {uuid: choice.server for uuid, choice in choices.items()}
        servers.pop(but, None)
        return list(servers.values())

    def _servers(self, shared):
        """{UUID: server with units} of all domains.

        :param shared: pCPUs of a server that may run on all
        """
        found = {guest.uuid: _server_of(guest)
                 for guest in self._host.list_guests(only_running=False)}
        return {uuid: server._replace(pcpus=server.pcpus or shared)
                for uuid, server in found.items() if server is not None}


def _is_exact():
    """Whether vCPUs have to pack."""
    return CONF.vqos.packing == 'exact'


def _counted(report):
    """The core types whose servers count for the admission of others."""
    return (report.all_core_types if _is_exact()
            else report.unlike_core_types)


def _with_servers(all_core_types, servers):
    return core_types.with_servers(
        all_core_types, servers, reserved_cu=CONF.vqos.reserved_cu,
        allocation_ratio=CONF.vqos.allocation_ratio, exact=_is_exact())


def _drop(choices, is_done):
    """Drop those of which is_done(uuid, choice)."""
    for uuid, choice in list(choices.items()):
        if is_done(uuid, choice):
            choices.pop(uuid, None)


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
        LOG.warning('A domain cannot be read, its CPU units are not counted: '
                    '%s', error)
        return None
    if policy is None or policy.units is None:
        return None
    return _server(policy, domain.pcpus)


def _server(policy, pcpus):
    return core_types.Server(policy.units, pcpus, policy.vcpus)
