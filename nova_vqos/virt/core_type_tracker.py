# SPDX-License-Identifier: Apache-2.0
"""Which core type each server of a host runs on, and whether there is room.

Placement counts the units of a host first. Under concurrent requests it may
sell more than there are (doc/source/contributor/oversold.rst), so that the
sum is counted here again. What servers use is read from all domains of the
host, stopped ones included, since these still hold what they claimed.
"""

import time
import typing as ty

import nova.conf
from oslo_concurrency import lockutils
from oslo_log import log as logging

from nova_vqos import core_types
from nova_vqos import domain_xml
from nova_vqos import policy as policies
from nova_vqos import units

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

# NOTE: of oslo.concurrency, as Nova's own: it works on threads and on
# eventlet, which nova-compute of Nova 33 runs on by default.
_LOCK = 'nova_vqos_room'

# A choice whose guest never came, and was never cleaned up, holds its room for
# so long: longer only while the server moves, since disks may be fetched from
# the check of a live migration to the guest's arrival.
_CHOICE_LIFE_S = 60.0
# Likewise the room of a server that failed before there was a guest again.
_LAST_LIFE_S = 600.0


class _Choice(ty.NamedTuple):
    server: core_types.Server
    made_at_s: float


class HostFull(units.UnitsError):
    """The servers of a host leave too few of its units for another one."""

    def __init__(self, cu, used_cu, sold_cu):
        """
        :param cu: CU of the server that is refused
        :param used_cu: CU of all servers of the host
        :param sold_cu: CU that the host sells
        """
        super().__init__(
            f'the servers of this host have {used_cu} of the '
            f'{units.format_cu(sold_cu)} CU that it sells, {cu} CU more do '
            'not fit')


class CoreTypeTracker:
    """Chooses a core type for each server of a host, while there is room.

    From reading all domains and choices to recording the new choice it holds
    a lock, so that no two servers get the same room.
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

    @lockutils.synchronized(_LOCK)
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

    @lockutils.synchronized(_LOCK)
    def choose(self, candidate, report, sold_cu):
        """The pCPUs for a server that is new to the host.

        :param candidate: nova_vqos.virt.admission.Candidate with units
        :param report: :class:`nova_vqos.virt.host_state.HostReport`
        :param sold_cu: CU that the host sells; None: the sum is not counted
        :returns: None where all pCPUs are equal
        :raises HostFull: when all servers have more than the host sells
        :raises nova_vqos.core_types.NoCoreTypeFits: when no core type fits
        """
        servers = self._all_servers(but=candidate.uuid)
        _check_sum(candidate.policy, servers, sold_cu)
        left = _with_servers(_counted(report), servers)
        if not left:
            return self._record(candidate, left, None)
        mine = _of_pins(left, candidate.pins)
        if not mine:
            raise core_types.SpansCoreTypes(candidate.policy, left)
        return self._record(candidate, left, core_types.choose(
            candidate.policy, mine, tick_us=report.profile.tick_us))

    @lockutils.synchronized(_LOCK)
    def check_pinned(self, candidate, report, sold_cu):
        """Refuse a new server, with pins of Nova's, that does not fit.

        :param candidate: nova_vqos.virt.admission.Candidate with units
        :param report: :class:`nova_vqos.virt.host_state.HostReport`
        :param sold_cu: CU that the host sells; None: the sum is not counted
        :raises HostFull: when all servers have more than the host sells
        :raises nova_vqos.core_types.NoCoreTypeFits: when its vCPUs do not
            pack
        """
        servers = self._all_servers(but=candidate.uuid)
        _check_sum(candidate.policy, servers, sold_cu)
        server = _server(candidate.policy, candidate.pcpus)
        if _is_exact() and not all(one.packed.packs() for one in _with_servers(
                report.all_core_types, [*servers, server])
                if one.pcpus & candidate.pcpus):
            raise core_types.NoCoreTypeFits(
                candidate.policy, _with_servers(report.all_core_types,
                                                servers))
        # Before a live migration its pins are not known yet.
        self._hold(candidate, None if candidate.pcpus == report.pcpus
                   else candidate.pcpus)

    @lockutils.synchronized(_LOCK)
    def choose_again(self, candidate, report):
        """The pCPUs for a server that has been on the host before.

        :param candidate: nova_vqos.virt.admission.Candidate with units
        :param report: :class:`nova_vqos.virt.host_state.HostReport`
        :returns: None where all pCPUs are equal, or no core type fits
        """
        left = _with_servers(_counted(report),
                             self._all_servers(but=candidate.uuid))
        if not left:
            return self._record(candidate, left, None)
        mine = _of_pins(left, candidate.pins)
        last = self._last.get(candidate.uuid)
        chosen = (mine[0] if len(left) == 1 and mine
                  else core_types.choose_again(
                      candidate.policy, mine, last and last.server.pcpus,
                      tick_us=report.profile.tick_us))
        if chosen is None:
            LOG.warning('Server %(uuid)s runs on all core types: %(error)s', {
                'uuid': candidate.uuid,
                'error': core_types.NoCoreTypeFits(candidate.policy, left)})
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

    def drop_old_choices(self, is_moving):
        """Free the room of servers that were to come, and did not.

        :param is_moving: is_moving(uuid) tells whether a server still may
        """
        oldest_s = time.monotonic() - _CHOICE_LIFE_S
        _drop(self._chosen, lambda uuid, choice: (
            choice.made_at_s < oldest_s and not is_moving(uuid)))

    def _record(self, candidate, left, chosen):
        """:returns: the pCPUs of the one chosen; None: there is no other"""
        pcpus = chosen.pcpus if chosen and len(left) > 1 else None
        self._hold(candidate, pcpus)
        return pcpus

    def _hold(self, candidate, pcpus):
        """Hold a server's room until its domain is there.

        :param pcpus: that its domain will have; None: any
        """
        self._chosen[candidate.uuid] = _Choice(
            _server(candidate.policy, pcpus), time.monotonic())

    def _left(self, all_core_types):
        """Core types, given without any server, with the room that is left."""
        return (_with_servers(all_core_types, self._all_servers())
                if all_core_types else ())

    def _all_servers(self, but=None):
        """The servers with units, also those whose domain is still to come.

        :param but: UUID of a server that is left out; None: all count
        """
        oldest_s = time.monotonic() - _LAST_LIFE_S
        _drop(self._last, lambda _, last: last.made_at_s < oldest_s)
        servers = self._servers()
        _drop(self._chosen,
              lambda uuid, choice: _has_come(servers.get(uuid), choice))
        # Servers that have no domain for a moment hold their room.
        servers = {uuid: last.server for uuid, last
                   in list(self._last.items())} | servers
        servers |= {uuid: choice.server for uuid, choice
                    in list(self._chosen.items())}
        servers.pop(but, None)
        return list(servers.values())

    def _servers(self):
        """{UUID: server with units} of all domains."""
        found = {guest.uuid: _server_of(guest)
                 for guest in self._host.list_guests(only_running=False)}
        return {uuid: server for uuid, server in found.items()
                if server is not None}


def _check_sum(policy, servers, sold_cu):
    """Refuse a server as Placement would, where the host sells too little."""
    used_cu = sum(server.units for server in servers)
    if sold_cu is not None and used_cu + policy.units > sold_cu:
        raise HostFull(policy.units, used_cu, sold_cu)


def _has_come(server, choice):
    """Whether a domain is that of a choice, not the one before it.

    :param server: the server of the domain; None: there is no domain
    """
    return server is not None and choice.server in (
        server, server._replace(pcpus=None))


def _is_exact():
    """Whether vCPUs have to pack."""
    return CONF.vqos.packing == 'exact'


def _counted(report):
    """The core types whose servers count for the admission of others."""
    return (report.all_core_types if _is_exact()
            else report.unlike_core_types)


def _of_pins(all_core_types, pins):
    """The parts of core types on which each vCPU has a pCPU.

    :param pins: of all vCPUs; none: they may run on all
    """
    if not pins:
        return all_core_types
    return core_types.restricted(
        [one for one in all_core_types
         if all(one.pcpus & pin for pin in pins)],
        frozenset().union(*pins))


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
