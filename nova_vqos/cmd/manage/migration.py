# SPDX-License-Identifier: Apache-2.0
"""Whether a server can be live-migrated to a host.

The one judgement of ``migration check`` and of the Watcher strategy, so that
neither proposes what the other refuses.
"""

from collections.abc import Iterable, Mapping
import typing as ty

from nova_vqos import policy
from nova_vqos.agent import fanout
from nova_vqos.agent.messages import host_report
from nova_vqos.cmd.manage import checks
from nova_vqos.cmd.manage import cloud
from nova_vqos.cmd.manage import demand as demands
from nova_vqos.cmd.manage import errors
from nova_vqos.cmd.manage import placement as placements


class Migration:
    """One server, judged for many hosts.

    :ivar server: it
    :ivar policy: None: stock Nova's business
    :ivar demand: what it asks of Placement
    """

    def __init__(self, server: cloud.Server, *, agent_max_age_s: int,
                 servers_without_units: str) -> None:
        """
        :param agent_max_age_s: see the option, as the next one
        :raises ManageError: when its flavor is invalid
        """
        self.server = server
        self.policy = policy_of(server.flavor)
        self.demand = demands.of_flavor(server.flavor, server.resources)
        self._check = checks.Check(
            self.policy, self.demand, agent_max_age_s=agent_max_age_s,
            servers_without_units=servers_without_units,
            in_one_type=not server.has_topology)

    def verdict(self, facts: checks.Facts,
                source: checks.Facts | None) -> checks.Verdict:
        """Whether a host can take it.

        :param facts: of the host
        :param source: of the host where it is; None: there are none
        """
        verdict = self._check.verdict(facts)
        if verdict.host == self.server.host:
            return verdict._replace(
                fits=checks.NO, reasons=('the server is there already',))
        obstacles = self.obstacles(source)
        if not obstacles:
            return verdict
        return verdict._replace(fits=checks.NO,
                                reasons=(*obstacles, *verdict.reasons))

    def obstacles(self, source: checks.Facts | None) -> list[str]:
        """Why it cannot be live-migrated anywhere.

        :param source: see :meth:`verdict`
        """
        found = [*self.server.obstacles]
        if source is None or source.compute.is_down:
            found.append(f'the compute service of {self.server.host}, where '
                         'the server is, is down')
        return found

    def speed_cu(self, source: checks.Facts | None) -> float | None:
        """The speed of the pCPUs where it is; None: not known."""
        return source and self._check.verdict(source).speed_cu


def facts_of(placement: placements.Placement,
             computes: Iterable[cloud.Compute], demand: demands.Demand,
             answers: Mapping[str, fanout.Answer[host_report.Host]],
             providers: Mapping[str, demands.Provider] = {}
             ) -> list[checks.Facts]:
    """What is known of hosts, for one demand, in the order of the answers.

    :param answers: of their agents to get_host, by host
    :param providers: that were read already, by UUID
    """
    hosts = {one.host: one for one in computes}
    offered = placement.offers(demand)
    known = {**providers, **offered}
    known |= placement.providers(
        one.provider for one in hosts.values() if one.provider not in known)
    return [checks.Facts(
        hosts[host], hosts[host].provider in offered,
        known.get(hosts[host].provider), answer)
        for host, answer in answers.items()]


def policy_of(flavor: ty.Any) -> policy.ServerPolicy | None:
    """The policy of a flavor; None: stock Nova's business.

    :raises ManageError: when it is invalid, with the words of Nova's API from
        2.86 on
    """
    specs = flavor.extra_specs or {}
    problems = []
    for key, value in sorted(specs.items()):
        try:
            policy.check_value(key, value)
        except policy.PolicyError as error:
            problems.append(str(error))
    try:
        return policy.parse(specs, flavor.vcpus)
    except policy.PolicyError as error:
        problems = problems or [str(error)]
        raise errors.ManageError(
            f'Validation failed; {"; ".join(problems)}. No host takes a '
            'server of this flavor') from error
