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

"""Nova's libvirt driver, with CPU units.

Everything here is an addition around the stock method of the same name, in
the few places where it has to be: Nova 33 and 34 have the same ones. Servers
without units, and hosts without a profile, keep stock behaviour.

NOTE: no threads and no locks: nova-compute of Nova 33 runs on eventlet by
default. What is remembered here is changed by single operations.
"""

from nova.compute import task_states
import nova.conf
from nova.virt.libvirt import driver as libvirt_driver
from oslo_log import log as logging

from nova import exception
from nova_vqos import compute_state
from nova_vqos import host_report
from nova_vqos import policy as policies
from nova_vqos.conf import agent as agent_conf
from nova_vqos.conf import vqos as vqos_conf
from nova_vqos.virt import admission
from nova_vqos.virt import classkeeper
from nova_vqos.virt import cputune
from nova_vqos.virt import inventory
from nova_vqos.virt import waker

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
        vqos_conf.register_opts(CONF)
        agent_conf.register_opts(CONF)
        self._vqos_reporter = host_report.HostReporter(
            CONF.vqos.profile_path, CONF.vqos.agent_state_path,
            CONF.vqos.profile_max_interval, CONF.vqos.verification_path)
        # Whether Placement has units of this host; None: not yet known.
        self._vqos_sells_units = None
        self._vqos_waker = waker.AgentWaker()
        # UUIDs of servers whose guest is being made anew on this host.
        self._vqos_returning = set()
        self._vqos_classes = classkeeper.ClassKeeper(
            lambda: self._host.list_guests(only_running=False))
        self._vqos_teller = compute_state.Keeper(CONF.vqos.compute_state_path)

    def update_provider_tree(self, provider_tree, nodename, allocations=None):
        """Add inventory of CPU units and traits to what the host has.

        Called again on a reshape and on a conflict: the outcome depends on
        the tree alone. Raises what the stock method raises.
        """
        # NOTE: read before, since the stock method replaces all inventory.
        last = inventory.last_of(provider_tree, nodename)
        super().update_provider_tree(provider_tree, nodename, allocations)
        try:
            report = self._vqos_report()
            mine = inventory.cpu_units(
                report, last, reserved_cu=CONF.vqos.reserved_cu,
                allocation_ratio=CONF.vqos.allocation_ratio)
            traits = report.traits()
        except Exception:
            # An exception would keep nova-compute from starting, and freeze
            # the stats of one that runs.
            LOG.exception('No new servers with CPU units are taken')
            mine = None if last is None else inventory.closed(last)
            traits = set()
        inventory.merge(provider_tree, nodename, mine)
        inventory.set_traits(provider_tree, nodename, traits)
        self._vqos_sells_units = mine is not None

    def get_available_resource(self, nodename):
        """Add to the stats what the scheduler filter asks for."""
        resources = super().get_available_resource(nodename)
        terms = {}
        try:
            report = self._vqos_report()
            stats = report.stats(self._vqos_classes.all_rooms(report))
            # Without a profile the host is stock Nova's, unless servers with
            # units may have been sold on it before the profile was lost.
            sells_units = report.present or bool(self._vqos_sells_units)
            terms = compute_state.terms_of(report.profile,
                                           vqos_conf.periods(CONF))
        except Exception as error:
            LOG.exception('The state of CPU units is not known')
            stats = {'vqos_profile': f'it cannot be told: {error}'[:255]}
            sells_units = self._vqos_sells_units is not False
        stats['vqos_sells_units'] = str(sells_units)
        resources.setdefault('stats', {}).update(stats)
        self._vqos_teller.keep(stats, terms)
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
            data = super().check_can_live_migrate_destination(
                context, instance, src_compute_info, dst_compute_info,
                block_migration, disk_over_commit)
        except Exception:
            self._vqos_classes.forget_choice(instance.uuid)
            raise
        if pcpus is not None:
            # NOTE: stock Nova's own way to a <vcpu cpuset> of this host, by
            # which libvirt's hook then caps (nova/virt/libvirt/migration.py).
            data.dst_cpu_shared_set_info = set(pcpus)
        return data

    def live_migration(self, context, instance, dest, post_method,
                       recover_method, block_migration=False,
                       migrate_data=None):
        """Have nothing slow the migration of a server that pays for I/O."""
        self._vqos_waker.lift(instance)
        super().live_migration(context, instance, dest, post_method,
                               recover_method, block_migration, migrate_data)

    def post_live_migration_at_destination(
            self, context, instance, network_info, block_migration=False,
            block_device_info=None):
        """Tell the agent of the server that came in."""
        super().post_live_migration_at_destination(
            context, instance, network_info, block_migration,
            block_device_info)
        self._vqos_waker.wake(instance)

    def cleanup(self, context, instance, network_info,
                block_device_info=None, destroy_disks=True, migrate_data=None,
                destroy_vifs=True, destroy_secrets=True):
        """Give the room up that a guest which failed to come had."""
        self._vqos_classes.forget_choice(instance.uuid)
        return super().cleanup(
            context, instance, network_info, block_device_info, destroy_disks,
            migrate_data, destroy_vifs, destroy_secrets)

    def _get_existing_guest_config(self, instance):
        """Note where a guest may run, before it is undone and made anew."""
        if self._vqos_report().classes:
            try:
                self._vqos_classes.note_last(
                    instance.uuid, self._host.get_guest(instance))
            except exception.InstanceNotFound:
                pass
        return super()._get_existing_guest_config(instance)

    def _get_guest_config(self, instance, *args, **kwargs):
        """Note whether the server is new here, for the tuning of its guest."""
        if _is_arriving(instance):
            self._vqos_or_invalid(admission.policy_of, instance)
            return super()._get_guest_config(instance, *args, **kwargs)
        self._vqos_returning.add(instance.uuid)
        try:
            return super()._get_guest_config(instance, *args, **kwargs)
        finally:
            self._vqos_returning.discard(instance.uuid)
            self._vqos_classes.forget_last(instance.uuid)

    def _update_guest_cputune(self, guest, flavor):
        """Give the guest the cap and the shares that its flavor promises.

        :raises nova.exception.InvalidInput: when the flavor is invalid: no
            other host would do
        :raises nova.exception.UnsupportedHostCPUControlPolicy: when the host
            can cap no guest
        :raises nova.exception.ComputeResourcesUnavailable: when this host
            cannot keep the promise: another is tried
        """
        policy = self._vqos_or_invalid(policies.parse, flavor.extra_specs,
                                       flavor.vcpus)
        super()._update_guest_cputune(guest, flavor)
        if policy is None:
            return
        if policy.units is not None and self._vqos_obstacle():
            raise exception.UnsupportedHostCPUControlPolicy()
        report = self._vqos_report()
        if guest.uuid in self._vqos_returning:
            tune = cputune.of_returning(
                guest.uuid, policy, report, self._vqos_pcpus_of(
                    guest, policy, report, self._vqos_classes.keep),
                periods=vqos_conf.periods(CONF))
        else:
            try:
                tune = admission.check_newcomer(
                    policy, report, lambda: self._vqos_pcpus_of(
                        guest, policy, report, self._vqos_classes.choose),
                    periods=vqos_conf.periods(CONF))
            except admission.CannotServe as error:
                raise exception.ComputeResourcesUnavailable(
                    reason=str(error)) from error
        cputune.apply(tune, guest, policy)

    def _create_guest(self, context, xml, instance, *args, **kwargs):
        """Tell the agent of the new guest: every guest is made here."""
        guest = super()._create_guest(context, xml, instance, *args, **kwargs)
        self._vqos_waker.wake(instance)
        return guest

    def _vqos_report(self):
        return self._vqos_reporter.report(self._get_vcpu_available(),
                                          self._vqos_obstacle())

    def _vqos_obstacle(self):
        """Why this host can cap no guest, '' if it can."""
        if CONF.libvirt.virt_type not in _VIRT_TYPES:
            return (f'[libvirt] virt_type is {CONF.libvirt.virt_type}, it '
                    f'must be {" or ".join(_VIRT_TYPES)}')
        if not self._host.is_cpu_control_policy_capable():
            return 'this host has no cgroup controller for CPU time'
        return ''

    @staticmethod
    def _vqos_pcpus_of(guest, policy, report, find_class):
        """The pCPUs for a guest: of one class, where these are unlike.

        :param find_class: one of ClassKeeper's
        """
        if policy.units is not None:
            cputune.confine(
                guest, lambda: find_class(guest.uuid, policy, report))
        return cputune.eligible_pcpus(guest, report.pcpus)

    @staticmethod
    def _vqos_or_invalid(read, *args):
        """A policy as it is read; that it is invalid, in terms of Nova."""
        try:
            return read(*args)
        except policies.PolicyError as error:
            raise exception.InvalidInput(reason=str(error)) from error

    def _vqos_check_migration(self, instance):
        """:returns: the pCPUs for its guest; None: stock Nova knows them"""
        chosen = None

        def find_pcpus():
            nonlocal chosen
            # Pins are those of a NUMA topology, and Nova's business.
            if instance.numa_topology is None:
                chosen = self._vqos_classes.choose(instance.uuid, policy,
                                                   report)
            return report.pcpus if chosen is None else chosen

        try:
            policy = admission.policy_of(instance)
            if policy is None:
                return None
            obstacle = self._vqos_obstacle()
            if policy.units is not None and obstacle:
                raise admission.CannotServe(obstacle)
            report = self._vqos_report()
            admission.check_newcomer(policy, report, find_pcpus,
                                     periods=vqos_conf.periods(CONF))
        except (admission.CannotServe, policies.PolicyError) as error:
            reason = str(error)
        except Exception as error:
            LOG.exception('The check of CPU units failed', instance=instance)
            reason = f'the check of CPU units failed: {error}'
        else:
            return chosen
        LOG.info('Live migration to this host is refused: %s', reason,
                 instance=instance)
        raise exception.MigrationPreCheckError(
            reason=f'host {CONF.host}: {reason}')


def _is_arriving(instance):
    """Whether a server whose guest is made is new to this host."""
    if instance.task_state == task_states.REBUILD_SPAWNING:
        # NOTE: of a rebuild in place and an evacuation alike, but only the
        # latter is a move, with a claim and its migration context.
        return ('migration_context' in instance
                and instance.migration_context is not None)
    return instance.task_state in _ARRIVING
