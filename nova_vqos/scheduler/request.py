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

"""What filter and weighers read: a request's flavor, and a host's stats."""

from nova_vqos import policy as policies
from nova_vqos.virt import admission


def policy_of(spec_obj):
    """The policy of the servers of a request; None: stock Nova's business.

    :param spec_obj: nova.objects.RequestSpec
    :raises nova_vqos.policy.PolicyError: when flavor, or flavor and image
        together, are invalid
    """
    flavor = spec_obj.flavor
    if 'extra_specs' not in flavor or not flavor.extra_specs:
        return None
    policy = policies.parse(flavor.extra_specs, flavor.vcpus)
    if policy is not None and policy.units is not None:
        admission.check_shared_cpus(spec_obj.numa_topology)
    return policy


def stats_of(host_state):
    """The stats of a host, as texts.

    NOTE: Nova sets them when it reads the compute node, which it leaves for
    later while the node has not yet said what it has.
    """
    return getattr(host_state, 'stats', {})
