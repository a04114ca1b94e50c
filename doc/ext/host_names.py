# SPDX-License-Identifier: Apache-2.0
"""Sphinx directives: what hosts report, and what flavors may say."""

import datetime
import re

import described

from nova_vqos import agent_state
from nova_vqos import core_types
from nova_vqos import host_stats
from nova_vqos import policy
from nova_vqos import units
from nova_vqos import work
from nova_vqos.profile import document
from nova_vqos.quantum import occupancy
from nova_vqos.virt import host_state

_TIER = re.compile('(CUSTOM_VQOS_SPEED_)[0-9]+')


class ExtraSpecs(described.Described):
    """All keys of a flavor, with their values, the default first."""

    columns = ('Extra spec', 'Values', 'Effect')
    widths = (34, 26, 40)

    def facts(self):
        values = {policy.UNITS_KEY: f'1 to {units.MAX_UNITS}'}
        for key, choices in policy.CHOICES.items():
            first, *others = (f'``{choice}``' for choice in choices)
            values[key] = ', '.join((f'{first} (default)', *others))
        values[policy.WORK_KEY] = (
            f'a kind, or 1 to {work.MOST_KINDS} of ``kind:weight``, weights '
            f'up to {work.MOST_WEIGHT}')
        values[policy.PROJECT_CEILING_KEY] = (
            f'``{policy.UNITS_KEY}`` to {units.MAX_UNITS}')
        values[policy.BURST_KEY] = (
            f'above ``{policy.UNITS_KEY}``, to {units.MAX_UNITS}')
        values[policy.BURST_SECONDS_KEY] = (
            f'1 to {policy.MOST_BURST_SECONDS}')
        return {key: (values[key],) for key in policy.KEYS}


class Traits(described.Described):
    """All traits that a host may have, those of speed as one."""

    columns = ('Trait', 'What it says')
    widths = (42, 58)

    def facts(self):
        return {_TIER.sub(r'\1*', trait): ()
                for trait in sorted(host_stats.traits(
                    _whole_report(self).stats()._replace(sells_units=True),
                    hook=True))}


class SpeedTiers(described.docutils.SphinxDirective):
    """The speeds that hosts have traits for."""

    def run(self):
        return self.parse_text_to_nodes(
            ', '.join(map(str, host_stats.SPEED_TIERS_CU)) + '.')


class Stats(described.Described):
    """All stats of a compute node, with those of the example's host."""

    columns = ('Key', 'Example', 'What it says')
    widths = (26, 30, 44)

    def facts(self):
        report = _whole_report(self)
        stats = report.stats(core_types.with_servers(
            report.all_core_types, (), exact=True), servers=0)._replace(
                sells_units=True)
        return {key: (f'``{value}``',) for key, value
                in host_stats.encode(stats).items()}


def _whole_report(directive):
    """That of the example's host, which does all that a host can do."""
    _, path = directive.env.relfn2path('/reference/profile.yaml')
    directive.env.note_dependency(path)
    with open(path, 'rb') as file:
        found = document.loads(file.read())
    return host_state.HostReport(
        pcpus=found.pcpus, profile=found, problem='', present=True,
        agent=agent_state.AgentState(
            seen_at=datetime.datetime(2026, 11, 22, 10,
                                      tzinfo=datetime.UTC),
            quantum_classes=policy.CHOICES[policy.QUANTUM_CLASS_KEY],
            dd_billing=policy.CHOICES[policy.DD_BILLING_KEY],
            guarantee_pcpus=1.5, guarantee_total_pcpus=1.75,
            keeps_ceilings=True,
            occupancy=occupancy.Occupancy(
                {'io': occupancy.PoolSize(2, 5),
                 'cache': occupancy.PoolSize(4, 3)}, 1)))


def setup(app):
    app.add_directive('extra-specs', ExtraSpecs)
    app.add_directive('host-traits', Traits)
    app.add_directive('host-speed-tiers', SpeedTiers)
    app.add_directive('host-stats', Stats)
    return {'parallel_read_safe': True, 'parallel_write_safe': True}
