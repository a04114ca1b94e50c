# SPDX-License-Identifier: Apache-2.0
"""Which core type each server of a host runs on, and whether there is room.

Placement counts the units of a host first. Under concurrent requests it may
sell more than there are (doc/source/contributor/oversold.rst), so that the
sum is counted here again. What servers use is read from all domains of the
host, stopped ones included, since these still hold what they claimed.
"""

from fractions import Fraction
import time
import typing as ty

import nova.conf
from oslo_concurrency import lockutils
from oslo_log import log as logging

from nova_vqos import core_types
from nova_vqos import domain_xml
from nova_vqos import policy as policies
from nova_vqos import room
from nova_vqos.conf import vqos
from nova_vqos.virt import stock_servers

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


class _LastStock(ty.NamedTuple):
    server: stock_servers.StockServer
    made_at_s: float


class _Used(ty.NamedTuple):
    """What is used of a host.

    :ivar servers: those with units
    :ivar reserved_cu: for the host itself, and for servers without units
    """

    servers: list
    reserved_cu: int

    @property
    def units_cu(self):
        """CU of all servers."""
        return sum(server.units for server in self.servers)

    def costs_cu(self, report):
        """CU that all servers take: more where their work is slow here."""
        all_core_types = report.all_core_types
        return sum((_cost_cu(server, all_core_types)
                    for server in self.servers), start=Fraction(0))


class Usage(ty.NamedTuple):
    """What servers use of a host, and what they leave.

    :ivar stock_load: of those without units
    :ivar work_cu: CU that may not be sold since slow kinds of work take them
    :ivar left: all core types with the room that is left, be it one alone;
        empty: there is no profile
    :ivar servers: how many there are, with units or without, also those whose
        domain is still to come: what is left is without their room
    """

    stock_load: stock_servers.Load
    work_cu: int
    left: tuple
    servers: int


NO_USAGE = Usage(stock_servers.Load(0, None), 0, (), 0)


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
        # Likewise, without units.
        self._last_stock = {}
        # By UUID, what servers were before a resize on this host, which is
        # neither confirmed nor reverted: their claims are still there.
        self._formers = {}
        # By UUID, the XML of a domain as last parsed, and what it is.
        self._parsed = {}
        #: That of the last usage; None: it was not asked for yet.
        self.last_stock_load = None

    @lockutils.synchronized(_LOCK)
    def usage(self, report):
        """What servers use of the host, and what they leave.

        All domains are read for it, once.

        :param report: :class:`nova_vqos.virt.host_state.HostReport`
        :returns: Usage
        """
        domains = self._domains()
        load = self._load(domains, report)
        self._log_stock_load(load)
        used = self._used_of(domains, report, load)
        return Usage(
            load, room.work_cu(used.units_cu, used.costs_cu(report),
                               CONF.vqos.allocation_ratio),
            _with_servers(report.all_core_types, used),
            len({*domains, *self._chosen, *self._last, *self._last_stock}))

    def _log_stock_load(self, load):
        last = self.last_stock_load
        if (load.cu or 0) != (0 if last is None else last.cu or 0):
            LOG.warning('Servers without CPU units on this host: %(servers)d. '
                        'CPU units reserved for them: %(cu)d', {
                            'servers': load.servers, 'cu': load.cu or 0})
        self.last_stock_load = load

    @lockutils.synchronized(_LOCK)
    def choose(self, candidate, report, sale):
        """The pCPUs for a server that is new to the host.

        :param candidate: nova_vqos.virt.admission.Candidate with units
        :param report: :class:`nova_vqos.virt.host_state.HostReport`
        :param sale: nova_vqos.room.Sale of the host; None: the sum is not
            counted
        :returns: None where all pCPUs are equal
        :raises nova_vqos.room.HostFull: when all servers have more than the
            host sells
        :raises nova_vqos.core_types.NoCoreTypeFits: when no core type fits
        """
        used = self._used(report, but=candidate.uuid)
        claimed = self._with_former(used, candidate.uuid)
        policy = candidate.policy
        if report.unlike_core_types:
            # What it takes depends on the core type.
            _check_sum(policy, policy.units, claimed, report, sale)
        else:
            _check_sum(policy, _cost_cu(_server(policy, None),
                                        report.all_core_types),
                       claimed, report, sale)
        left = _with_servers(_counted(report), used)
        if not left:
            return self._record(candidate, left, None)
        mine = _of_pins(left, candidate.pins)
        if not mine:
            raise core_types.SpansCoreTypes(policy, left)
        chosen = core_types.choose(policy, mine,
                                   tick_us=report.profile.tick_us)
        _check_sum(policy, chosen.cost_cu(policy.units, policy.vcpus,
                                          policy.mix), claimed, report, sale)
        return self._record(candidate, left, chosen)

    @lockutils.synchronized(_LOCK)
    def check_pinned(self, candidate, report, sale):
        """Refuse a new server, with pins of Nova's, that does not fit.

        :param candidate: nova_vqos.virt.admission.Candidate with units
        :param report: :class:`nova_vqos.virt.host_state.HostReport`
        :param sale: nova_vqos.room.Sale of the host; None: the sum is not
            counted
        :raises nova_vqos.room.HostFull: when all servers have more than the
            host sells
        :raises nova_vqos.core_types.NoCoreTypeFits: when its vCPUs do not
            pack
        """
        used = self._used(report, but=candidate.uuid)
        server = _server(candidate.policy, candidate.pcpus)
        _check_sum(
            candidate.policy, _cost_cu(server, report.all_core_types),
            self._with_former(used, candidate.uuid), report, sale)
        with_it = used._replace(servers=[*used.servers, server])
        if _is_exact() and not all(
                one.packed.packs() for one in _with_servers(
                    report.all_core_types, with_it)
                if one.pcpus & candidate.pcpus):
            raise core_types.NoCoreTypeFits(
                candidate.policy, _with_servers(report.all_core_types, used))
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
                             self._used(report, but=candidate.uuid))
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
        server = _server_of(guest, {})
        if isinstance(server, core_types.Server):
            self._last[uuid] = _Choice(server, time.monotonic())
        elif server is not None:
            self._last_stock[uuid] = _LastStock(server, time.monotonic())

    def forget_last(self, uuid):
        """The guest was made anew."""
        self._last.pop(uuid, None)
        self._last_stock.pop(uuid, None)

    def keep_formers(self, policies_by_uuid):
        """Count what servers were before a resize on this host, as well.

        Placement holds both claims until it is confirmed or reverted. These
        replace the last ones.

        :param policies_by_uuid: policies with units
        """
        self._formers = {uuid: _server(policy, None)
                         for uuid, policy in policies_by_uuid.items()}

    @lockutils.synchronized(_LOCK)
    def hold(self, candidate):
        """Hold the room of a server that comes whether it fits or not.

        :param candidate: nova_vqos.virt.admission.Candidate
        """
        if (candidate.policy.units is not None
                and candidate.uuid not in self._chosen):
            self._hold(candidate, None)

    @lockutils.synchronized(_LOCK)
    def forget_choice(self, uuid):
        """The guest does not come, or its domain is there and counts."""
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

    def _used(self, report, but=None):
        """What is used, also by servers whose domain is still to come.

        :param but: UUID of a server that is left out; None: all count
        """
        domains = self._domains()
        return self._used_of(domains, report,
                             self._load(domains, report, but), but)

    def _used_of(self, domains, report, load, but=None):
        host_cu = vqos.reserved_cu(CONF, report.agent.reserve_cu)
        return _Used(self._all_servers(domains, but),
                     host_cu + (load.cu or 0))

    def _load(self, domains, report, but=None):
        """What servers without units take.

        :param domains: see :meth:`_domains`
        :param but: UUID of a server that is left out; None: all count
        """
        stock = {uuid: last.server for uuid, last
                 in list(self._last_stock.items())}
        stock |= {uuid: server for uuid, server in domains.items()
                  if isinstance(server, stock_servers.StockServer)}
        stock.pop(but, None)
        profile = report.profile
        if CONF.vqos.servers_without_units == 'allow' or profile is None:
            return stock_servers.Load(len(stock), None)
        return stock_servers.Load(len(stock), stock_servers.cu_of(
            stock.values(), profile, report.pcpus))

    def _all_servers(self, domains, but):
        """The servers with units, also those whose domain is still to come.

        :param domains: see :meth:`_domains`
        :param but: UUID of a server that is left out; None: all count
        """
        servers = {uuid: server for uuid, server in domains.items()
                   if isinstance(server, core_types.Server)}
        _drop(self._chosen,
              lambda uuid, choice: _has_come(servers.get(uuid), choice))
        # Servers that have no domain for a moment hold their room.
        servers = {uuid: last.server for uuid, last
                   in list(self._last.items())} | servers
        servers |= {uuid: choice.server for uuid, choice
                    in list(self._chosen.items())}
        formers = [former for uuid, former in self._formers.items()
                   if uuid != but and not _is_as(servers.get(uuid), former)]
        servers.pop(but, None)
        return [*servers.values(), *formers]

    def _with_former(self, used, uuid):
        """What is used, with what a server was before a resize here."""
        former = self._formers.get(uuid)
        return used if former is None else used._replace(
            servers=[*used.servers, former])

    def _domains(self):
        """{UUID: server, with units or without; None: neither} of all."""
        oldest_s = time.monotonic() - _LAST_LIFE_S
        for last in self._last, self._last_stock:
            _drop(last, lambda _, one: one.made_at_s < oldest_s)
        found = {guest.uuid: _server_of(guest, self._parsed)
                 for guest in self._host.list_guests(only_running=False)}
        _drop(self._parsed, lambda uuid, _: uuid not in found)
        return found


def _check_sum(policy, cost_cu, used, report, sale):
    """Refuse a server as Placement would, where the host sells too little.

    :param policy: of the server
    :param cost_cu: CU that it takes
    """
    if sale is not None:
        room.Room(used.units_cu, used.costs_cu(report), sale).check(
            policy.units, cost_cu)


def _cost_cu(server, all_core_types):
    """CU of the host that a server takes; its units without a profile."""
    return (sum(core_types.costs_cu(server, all_core_types))
            if all_core_types else Fraction(server.units))


def _has_come(server, choice):
    """Whether a domain is that of a choice, not the one before it.

    :param server: the server of the domain; None: there is no domain
    """
    return server is not None and choice.server in (
        server, server._replace(pcpus=None))


def _is_as(server, former):
    """Whether a server is what it was before: nothing else is held then.

    :param server: None: there is neither domain nor choice
    """
    return (server is not None
            and server._replace(pcpus=None) == former._replace(pcpus=None))


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


def _with_servers(all_core_types, used):
    return core_types.with_servers(
        all_core_types, used.servers, reserved_cu=used.reserved_cu,
        allocation_ratio=CONF.vqos.allocation_ratio, exact=_is_exact())


def _drop(choices, is_done):
    """Drop those of which is_done(uuid, choice)."""
    for uuid, choice in list(choices.items()):
        if is_done(uuid, choice):
            choices.pop(uuid, None)


def _server_of(guest, parsed):
    """A guest as a server, with units or without; None: it is neither.

    :param parsed: by UUID, XML and server: to parse another XML only
    """
    xml, server = parsed.get(guest.uuid, (None, None))
    try:
        now = guest.get_xml_desc()
        if now != xml:
            server = _parse(domain_xml.read(now))
            parsed[guest.uuid] = now, server
    except Exception as error:
        # It may be gone by now.
        LOG.warning('A domain cannot be read, its CPU units are not counted: '
                    '%s', error)
        return None
    return server


def _parse(domain):
    """A domain as a server, with units or without; None: it is neither.

    :param domain: :class:`nova_vqos.domain_xml.Domain`
    """
    try:
        policy = (None if domain.extra_specs is None else
                  policies.parse(domain.extra_specs, domain.vcpus or 0))
    except policies.PolicyError:
        # It has no units that could be counted, as the agent says.
        policy = None
    if policy is None or policy.units is None:
        return stock_servers.of_domain(domain)
    return _server(policy, domain.pcpus)


def _server(policy, pcpus):
    return core_types.Server(policy.units, pcpus, policy.vcpus, policy.mix)
