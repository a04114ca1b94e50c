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

"""Whether a host can keep the promise of a flavor, and how."""

from nova.objects import fields

from nova_vqos import policy as policies
from nova_vqos import profile as profiles
from nova_vqos import tuning
from nova_vqos import units

_DEDICATED = (fields.CPUAllocationPolicy.DEDICATED,
              fields.CPUAllocationPolicy.MIXED)


class CannotServe(Exception):
    """This host cannot keep the promise; another may."""


def policy_of(instance):
    """The policy of a server.

    :param instance: nova.objects.Instance
    :returns: None for a server that is stock Nova's business
    :raises nova_vqos.policy.PolicyError: when the flavor is invalid, or what
        the image adds contradicts it
    """
    policy = policies.parse(instance.flavor.extra_specs,
                            instance.flavor.vcpus)
    if policy is not None and policy.units is not None:
        check_shared_cpus(instance.numa_topology)
    return policy


def check_shared_cpus(numa_topology):
    """Check that an image did not ask for dedicated CPUs where a flavor may.

    :param numa_topology: nova.objects.InstanceNUMATopology that flavor and
        image give together; None: none
    :raises nova_vqos.policy.PolicyError: when it did
    """
    cells = numa_topology.cells if numa_topology is not None else []
    for cell in cells:
        if cell.cpu_policy in _DEDICATED:
            # The flavor alone was checked already.
            raise policies.PolicyError(
                'hw_cpu_policy', cell.cpu_policy, 'shared or left out of an '
                f'image for a flavor with {policies.UNITS_KEY}: dedicated '
                'CPUs are not sold in units')


def check_offer(policy, report):
    """Check that a host does what a flavor asks for beside units.

    :raises CannotServe: when it does not
    """
    for key, wanted, offered in (
            (policies.QUANTUM_CLASS_KEY, policy.quantum_class,
             report.agent.quantum_classes),
            (policies.DD_BILLING_KEY, policy.dd_billing,
             report.agent.dd_billing)):
        if wanted not in offered:
            raise CannotServe(
                f'{key} is {wanted!r}, and this host offers '
                f'{", ".join(offered)}')


def tune(policy, report, pcpus, *, periods):
    """The tuning of a server on a host, by its profile, be it stale.

    :param policy: of the server, with units
    :param pcpus: those that its vCPUs may run on
    :raises CannotServe: when there is no profile, or the host is too slow
    """
    if report.profile is None:
        raise CannotServe(report.problem)
    try:
        return tuning.tune(
            policy, report.profile, pcpus,
            cgroup_version=tuning.host_cgroup_version(), periods=periods)
    except (units.UnitsError, profiles.ProfileError) as error:
        raise CannotServe(str(error)) from error


def check_newcomer(policy, report, find_pcpus, *, periods):
    """Check that a host can take in a server that it does not have yet.

    :param find_pcpus: called when nothing else is against it; gives those
        that the server's vCPUs may run on
    :returns: its tuning here; None for one without units
    :raises CannotServe: when it cannot
    """
    check_offer(policy, report)
    if policy.units is None:
        return None
    if not report.valid:
        raise CannotServe(report.problem)
    return tune(policy, report, find_pcpus(), periods=periods)
