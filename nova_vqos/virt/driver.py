# SPDX-License-Identifier: Apache-2.0
"""Nova's libvirt driver, with CPU units.

Everything here is an addition around the stock method of the same name, in
the few places where it has to be: Nova 33 and 34 have the same ones. Servers
without units, and hosts without a profile, keep stock behaviour.

NOTE: no threads: nova-compute of Nova 33 runs on eventlet by default. State is
changed by single operations, or under the lock of
:mod:`nova_vqos.virt.core_type_tracker`.
"""

from nova.compute import task_states
import nova.conf
from nova.virt.libvirt import driver as libvirt_driver
from nova.virt.libvirt import host as libvirt_host
from oslo_log import log as logging

from nova import exception
from nova import objects
from nova_vqos import policy as policies
from nova_vqos.conf import agent
from nova_vqos.conf import vqos
from nova_vqos.virt import admission
from nova_vqos.virt import agent_client
from nova_vqos.virt import arrivals
from nova_vqos.virt import claim
from nova_vqos.virt import core_type_tracker
from nova_vqos.virt import guest_cputune
from nova_vqos.virt import host_state
from nova_vqos.virt import inventory
from nova_vqos.virt import move
from nova_vqos.virt import nova_contract
from nova_vqos.virt import offer
from nova_vqos.virt import refusal

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

# NOTE: in these a server is new to the host; in all others in which a guest
# is made (reboot, start, rescue, revert, host boot) it has been here.
_ARRIVING = (task_states.SPAWNING, task_states.RESIZE_FINISH)

# Nova has <quota> for lxc as well, but there it is one for all vCPUs.
_VIRT_TYPES = ('kvm', 'qemu')


class VqosLibvirtDriver(libvirt_driver.LibvirtDriver):
    """Sells a host's CPU in units, and caps its servers to theirs."""

    def __init__(self, virtapi, read_only=False):
        super().__init__(virtapi, read_only)
        vqos.register_opts(CONF)
        agent.register_opts(CONF)
        self._vqos_reporter = host_state.HostReporter(
            CONF.vqos.profile_path, CONF.vqos.agent_state_path,
            CONF.vqos.profile_max_interval, CONF.vqos.verification_path,
            CONF.vqos.guaranteed_pcpus)
        # Why this Nova would start servers without a cap; '': it would not.
        self._vqos_unknown_nova = nova_contract.difference(
            type(self), libvirt_driver.LibvirtDriver, libvirt_host.Host)
        # UUID of this host's resource provider; None: not yet known.
        self._vqos_provider = None
        self._vqos_agent = agent_client.AgentClient()
        # UUIDs of servers whose guest is being made anew on this host.
        self._vqos_returning = set()
        # Likewise, of servers that have come by a cold migration or a resize.
        self._vqos_moved = set()
        # By UUID, admission.Former of guests that are to be made anew.
        self._vqos_formers = {}
        self._vqos_core_types = core_type_tracker.CoreTypeTracker(self._host)
        self._vqos_moves = move.ColdMoves(self._vqos_core_types)
        self._vqos_arrivals = arrivals.Arrivals(self._host)
        # By UUID of a server whose live migration the source has still to
        # agree to: the file that the check made.
        self._vqos_unchecked = {}
        self._vqos_offer = offer.HostOffer(
            self._vqos_report, self._vqos_core_types, self._vqos_moves,
            self._vqos_arrivals)

    def update_provider_tree(self, provider_tree, nodename, allocations=None):
        """Add inventory of CPU units and traits to what the host has.

        Called again on a reshape and on a conflict: the outcome depends on
        the tree alone. Raises what the stock method raises.
        """
        # NOTE: read before, since the stock method replaces all inventory.
        last = inventory.last_of(provider_tree, nodename)
        guarantees = inventory.guarantees(provider_tree, nodename)
        super().update_provider_tree(provider_tree, nodename, allocations)
        self._vqos_provider = provider_tree.data(nodename).uuid
        self._vqos_offer.update_provider(provider_tree, nodename, last,
                                         guarantees)

    def get_available_resource(self, nodename):
        """Add to the stats what the scheduler's filter and weighers read."""
        resources = super().get_available_resource(nodename)
        try:
            self._vqos_core_types.drop_old_choices(move.is_moving)
        except Exception as error:
            LOG.warning('It is not known which servers still move to this '
                        'host, their CPU units stay counted: %s', error)
        resources.setdefault('stats', {}).update(self._vqos_offer.stats())
        return resources

    def check_can_live_migrate_destination(
            self, context, instance, src_compute_info, dst_compute_info,
            block_migration=False, disk_over_commit=False):
        """Refuse a server whose promise this host cannot keep.

        Where pCPUs are unlike, the source learns which of them the guest is
        to run on.

        :raises nova.exception.MigrationPreCheckError: when it cannot
        """
        # NOTE: before the stock method, which makes a file; and nothing but
        # this exception, since any other one puts the running server into
        # ERROR (nova/conductor/manager.py).
        pcpus = self._vqos_check_migration(instance)
        try:
            self._vqos_correct_claim(context, instance)
            data = super().check_can_live_migrate_destination(
                context, instance, src_compute_info, dst_compute_info,
                block_migration, disk_over_commit)
        except admission.CannotServe as error:
            self._vqos_core_types.forget_choice(instance.uuid)
            raise exception.MigrationPreCheckError(
                reason=f'host {CONF.host}: {error}') from error
        except Exception:
            self._vqos_core_types.forget_choice(instance.uuid)
            raise
        if pcpus is not None:
            # NOTE: stock Nova's own way to a <vcpu cpuset> of this host, by
            # which libvirt's hook then caps (nova/virt/libvirt/migration.py).
            data.dst_cpu_shared_set_info = set(pcpus)
        self._vqos_unchecked[instance.uuid] = data.filename
        self._vqos_offer.record_sources({instance.uuid: instance.host})
        self._vqos_offer.stats()
        return data

    def post_claim_migrate_data(self, context, instance, migrate_data, claim):
        """Keep a server with pins on one core type of its cells.

        :raises nova.exception.MigrationPreCheckError: when none fits
        """
        data = super().post_claim_migrate_data(context, instance,
                                               migrate_data, claim)
        info = data.dst_numa_info
        if 'cpu_pins' in info and info.cpu_pins:
            pcpus = self._vqos_check_migration(
                instance, frozenset(map(frozenset, info.cpu_pins.values())))
            if pcpus is not None:
                info.cpu_pins = {vcpu: pins & pcpus for vcpu, pins
                                 in info.cpu_pins.items()}
        return data

    def check_source_migrate_data_at_dest(
            self, ctxt, instance, migrate_data, migration, limits, allocs):
        """Keep the room of a server: both hosts agree, so it comes."""
        data = super().check_source_migrate_data_at_dest(
            ctxt, instance, migrate_data, migration, limits, allocs)
        self._vqos_unchecked.pop(instance.uuid, None)
        return data

    def cleanup_live_migration_destination_check(self, context,
                                                 dest_check_data):
        """Free the room of a server that its source did not let go."""
        for uuid, filename in list(self._vqos_unchecked.items()):
            if filename == dest_check_data.filename:
                self._vqos_unchecked.pop(uuid, None)
                self._vqos_core_types.forget_choice(uuid)
        super().cleanup_live_migration_destination_check(context,
                                                         dest_check_data)

    def migrate_disk_and_power_off(
            self, context, instance, dest, flavor, network_info,
            block_device_info=None, timeout=0, retry_interval=0):
        """Ask the destination before the server is powered off.

        :raises nova.exception.InstanceFaultRollback: when the destination
            refuses: the server stays as it is
        """
        reason = self._vqos_refusal_of_move(context, instance, flavor)
        if reason:
            LOG.warning('The server stays on this host: %s', reason,
                        instance=instance)
            raise exception.InstanceFaultRollback(
                exception.MigrationPreCheckError(reason=reason))
        return super().migrate_disk_and_power_off(
            context, instance, dest, flavor, network_info, block_device_info,
            timeout, retry_interval)

    def spawn(self, context, instance, image_meta, injected_files,
              admin_password, allocations, network_info=None,
              block_device_info=None, power_on=True, accel_info=None):
        """Correct the claim of a server that arrives.

        :raises nova.exception.ComputeResourcesUnavailable: when it is too
            small, and Placement has no more
        """
        try:
            self._vqos_correct_claim(context, instance, allocations)
        except admission.CannotServe as error:
            if (instance.task_state != task_states.RESIZE_FINISH
                    and _is_arriving(instance)):
                raise exception.ComputeResourcesUnavailable(
                    reason=str(error)) from error
            # NOTE: it has been here before, or is off and has no other host.
            LOG.error('The server starts all the same: %s', error,
                      instance=instance)
        super().spawn(context, instance, image_meta, injected_files,
                      admin_password, allocations, network_info,
                      block_device_info, power_on, accel_info)

    def live_migration(self, context, instance, dest, post_method,
                       recover_method, block_migration=False,
                       migrate_data=None):
        """Have the agent lift the limits that would slow the migration."""
        self._vqos_agent.lift_limits(instance)
        super().live_migration(context, instance, dest, post_method,
                               recover_method, block_migration, migrate_data)

    def post_live_migration_at_destination(
            self, context, instance, network_info, block_migration=False,
            block_device_info=None):
        """Have the agent inspect the server that came in, and do so too."""
        super().post_live_migration_at_destination(
            context, instance, network_info, block_migration,
            block_device_info)
        refusal.clear(instance)
        self._vqos_core_types.forget_choice(instance.uuid)
        self._vqos_agent.wake(instance)
        if self._vqos_arrivals.check(instance):
            self._vqos_offer.stats()

    def cleanup(self, context, instance, network_info,
                block_device_info=None, destroy_disks=True, migrate_data=None,
                destroy_vifs=True, destroy_secrets=True):
        """Free the room of a guest that failed to come."""
        self._vqos_core_types.forget_choice(instance.uuid)
        return super().cleanup(
            context, instance, network_info, block_device_info, destroy_disks,
            migrate_data, destroy_vifs, destroy_secrets)

    def _get_existing_guest_config(self, instance):
        """Remember what a guest had and where, before it is undone."""
        try:
            guest = self._host.get_guest(instance)
        except exception.InstanceNotFound:
            pass
        else:
            self._vqos_formers[instance.uuid] = guest_cputune.former_of(guest)
            self._vqos_core_types.record_last(instance.uuid, guest)
        return super()._get_existing_guest_config(instance)

    def _get_guest_config(self, instance, *args, **kwargs):
        """Remember whether the server is new here, for its guest's tuning."""
        is_arriving = _is_arriving(instance)
        if not is_arriving:
            self._vqos_returning.add(instance.uuid)
        elif (instance.task_state == task_states.RESIZE_FINISH
                or refusal.is_recorded(instance)):
            self._vqos_moved.add(instance.uuid)
        try:
            if is_arriving:
                _parse_or_invalid(instance.flavor, instance.numa_topology)
            config = super()._get_guest_config(instance, *args, **kwargs)
        except Exception:
            if is_arriving:
                refusal.record(instance)
            raise
        finally:
            self._vqos_returning.discard(instance.uuid)
            self._vqos_moved.discard(instance.uuid)
            self._vqos_formers.pop(instance.uuid, None)
            self._vqos_core_types.forget_last(instance.uuid)
        if is_arriving:
            refusal.clear(instance)
        return config

    def _update_guest_cputune(self, guest, flavor):
        """Give the guest the cap and the shares that its flavor promises.

        One that has been here before starts in any case.

        :raises nova.exception.InvalidInput: when the flavor is invalid: no
            other host would do
        :raises nova.exception.UnsupportedHostCPUControlPolicy: when the host
            can cap no guest
        :raises nova.exception.ComputeResourcesUnavailable: when this host
            cannot keep the promise: another is tried
        """
        if guest.uuid in self._vqos_returning:
            self._vqos_update_returning(guest, flavor)
            return
        policy = _parse_or_invalid(flavor)
        super()._update_guest_cputune(guest, flavor)
        if policy is None:
            return
        if policy.units is not None and self._vqos_obstacle():
            raise exception.UnsupportedHostCPUControlPolicy()
        # NOTE: Nova has no other host for a server that moved here cold: it is
        # off, and a refusal would set it to ERROR.
        sale = (None if guest.uuid in self._vqos_moved
                else self._vqos_offer.sale(self._vqos_report()))
        try:
            self._vqos_admit(admission.admit, guest, policy, sale=sale)
        except admission.CannotServe as error:
            raise exception.ComputeResourcesUnavailable(
                reason=str(error)) from error

    def _vqos_update_returning(self, guest, flavor):
        """Do so for a server that has been here before.

        It was powered off already: refused, it would be in ERROR.
        """
        former = self._vqos_formers.get(guest.uuid)
        # NOTE: raises where the flavor has quota:cpu_* and the host no
        # cgroups, as in stock Nova.
        super()._update_guest_cputune(guest, flavor)
        try:
            policy = _parse(flavor)
        except policies.PolicyError as error:
            if not self._vqos_obstacle():
                guest_cputune.keep(guest, former, flavor, error)
            return
        if policy is None:
            return
        if policy.units is not None and (obstacle := self._vqos_obstacle()):
            # NOTE: libvirt starts no guest with a tuning that it cannot apply.
            LOG.error('Server %(uuid)s starts without cap and shares for its '
                      '%(units)d CPU units: %(obstacle)s',
                      {'uuid': guest.uuid, 'units': policy.units,
                       'obstacle': obstacle})
            return
        self._vqos_admit(admission.readmit, guest, policy, former=former)

    def _vqos_admit(self, admit, guest, policy, **options):
        report = self._vqos_report()
        guest_cputune.apply(admit(
            guest_cputune.candidate(guest, policy, report.pcpus), report,
            self._vqos_core_types, periods=vqos.periods(CONF), **options),
            guest, policy)

    def _create_guest(self, context, xml, instance, *args, **kwargs):
        """Have the agent inspect the new guest: every guest is made here.

        :raises nova.exception.ComputeResourcesUnavailable: when Nova made it
            without the tuning of its flavor
        """
        if (policies.UNITS_KEY in instance.flavor.extra_specs
                and _is_arriving(instance)):
            try:
                guest_cputune.check(xml)
            except guest_cputune.NotTuned as error:
                refusal.record(instance)
                raise exception.ComputeResourcesUnavailable(
                    reason=str(error)) from error
        if instance.task_state == task_states.UNRESCUING:
            xml = self._vqos_renewed(xml, instance)
        guest = super()._create_guest(context, xml, instance, *args, **kwargs)
        self._vqos_core_types.forget_choice(instance.uuid)
        self._vqos_agent.wake(instance)
        return guest

    def _vqos_renewed(self, xml, instance):
        """The XML that Nova saved when a rescue began, with today's tuning."""
        try:
            policy = _parse(instance.flavor, instance.numa_topology)
            if policy is None or policy.units is None or self._vqos_obstacle():
                return xml
            return guest_cputune.renewed(xml, policy, self._vqos_report(),
                                         vqos.periods(CONF))
        except Exception as error:
            LOG.warning('The server starts with the cap that it had when its '
                        'rescue began: %s', error, instance=instance)
            return xml

    def _vqos_report(self):
        return self._vqos_reporter.report(
            self._get_vcpu_available(),
            self._vqos_obstacle() or self._vqos_unknown_nova)

    def _vqos_obstacle(self):
        """Why this host can cap no guest, '' if it can."""
        if CONF.libvirt.virt_type not in _VIRT_TYPES:
            return (f'[libvirt] virt_type is {CONF.libvirt.virt_type}, it '
                    f'must be {" or ".join(_VIRT_TYPES)}')
        if not self._host.is_cpu_control_policy_capable():
            return 'this host has no cgroup controller for CPU time'
        return ''

    def _vqos_correct_claim(self, context, instance, allocations=None):
        """
        :param allocations: of the instance; None: they are read
        :raises nova_vqos.virt.admission.CannotServe: when there is no room
        """
        try:
            policy = _parse(instance.flavor, instance.numa_topology)
        except policies.PolicyError:
            # It is refused, or kept as it is, for that reason.
            return
        if self._vqos_provider is None:
            return
        claim.correct(context, instance.uuid, self._vqos_provider,
                      (policy and policy.units) or 0, allocations)

    def _vqos_refusal_of_move(self, context, instance, flavor):
        """Why the destination cannot take a server; '': nothing is known.

        :param flavor: that the server is to have there
        """
        try:
            context_of_move = instance.migration_context
            if _parse(flavor, context_of_move.new_numa_topology) is None:
                return ''
            migration = objects.Migration.get_by_id(
                context, context_of_move.migration_id)
            host = migration.dest_compute
            reason = (
                self._vqos_moves.reasons.get(instance.uuid, '')
                if host == migration.source_compute
                else self._vqos_agent.refusal(host, instance.uuid))
            return f'host {host}: {reason}' if reason else ''
        except policies.PolicyError as error:
            return str(error)
        except Exception:
            LOG.exception('The check of CPU units failed before the server '
                          'moves: it moves, whether its destination can take '
                          'it or not', instance=instance)
            return ''

    def _vqos_check_migration(self, instance, pins=frozenset()):
        """
        :param pins: of its vCPUs, those of a NUMA topology; none: there are
            none, or they are not yet known
        :returns: the pCPUs for its guest; None: stock Nova knows them
        """
        try:
            policy = _parse(instance.flavor, instance.numa_topology)
            if policy is None:
                return None
            report = self._vqos_report()
            is_pinned = instance.numa_topology is not None
            pcpus = admission.admit(
                admission.Candidate(
                    instance.uuid, policy,
                    frozenset().union(*pins) or report.pcpus, is_pinned, pins),
                report, self._vqos_core_types,
                sale=self._vqos_offer.sale(report),
                periods=vqos.periods(CONF)).pcpus
            # Its pins are known once Nova has claimed its cells.
            return None if is_pinned and not pins else pcpus
        except (admission.CannotServe, policies.PolicyError) as error:
            reason = str(error)
        except Exception as error:
            LOG.exception('The check of CPU units failed', instance=instance)
            reason = f'the check of CPU units failed: {error}'
        LOG.info('Live migration to this host is refused: %s', reason,
                 instance=instance)
        raise exception.MigrationPreCheckError(
            reason=f'host {CONF.host}: {reason}')


def _parse(flavor, numa_topology=None):
    return policies.parse(flavor.extra_specs, flavor.vcpus, numa_topology)


def _parse_or_invalid(*args):
    try:
        return _parse(*args)
    except policies.PolicyError as error:
        raise exception.InvalidInput(reason=str(error)) from error


def _is_arriving(instance):
    """Whether a server whose guest is made is new to this host."""
    if refusal.is_recorded(instance):
        return True
    if instance.task_state == task_states.REBUILD_SPAWNING:
        # NOTE: of a rebuild in place and an evacuation alike, but only the
        # latter is a move, with a claim and its migration context.
        return ('migration_context' in instance
                and instance.migration_context is not None)
    return instance.task_state in _ARRIVING
