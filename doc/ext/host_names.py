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


"""Sphinx directives: what hosts report, and what flavors may say."""

import re

import described

from nova_vqos import host_report
from nova_vqos import policy
from nova_vqos import profile
from nova_vqos import units
from nova_vqos.quantum import occupancy

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
        return {key: (values[key],) for key in policy.KEYS}


class Traits(described.Described):
    """All traits that a host may have, those of speed as one."""

    columns = ('Trait', 'What it says')
    widths = (42, 58)

    def facts(self):
        return {_TIER.sub(r'\1*', trait): ()
                for trait in sorted(_whole_report(self).traits())}


class SpeedTiers(described.docutils.SphinxDirective):
    """The speeds that hosts have traits for."""

    def run(self):
        return self.parse_text_to_nodes(
            ', '.join(map(str, host_report.SPEED_TIERS_CU)) + '.')


class Stats(described.Described):
    """All stats of a compute node, with those of the example's host."""

    columns = ('Key', 'Example', 'What it says')
    widths = (26, 30, 44)

    def facts(self):
        report = _whole_report(self)
        return {key: (f'``{value}``',) for key, value
                in report.stats(report.all_classes).items()}


def _whole_report(directive):
    """That of the example's host, which does all that a host can do."""
    _, path = directive.env.relfn2path('/reference/profile.yaml')
    directive.env.note_dependency(path)
    with open(path, 'rb') as file:
        found = profile.loads(file.read())
    return host_report.HostReport(
        pcpus=found.pcpus, profile=found, problem='', present=True,
        agent=host_report.AgentState(
            seen_at='2026-11-22T10:00:00+00:00',
            quantum_classes=policy.CHOICES[policy.QUANTUM_CLASS_KEY],
            dd_billing=policy.CHOICES[policy.DD_BILLING_KEY],
            quantum=occupancy.Occupancy(
                {'io': occupancy.PoolSize(2, 5),
                 'cache': occupancy.PoolSize(4, 3)}, 1)),
        hook=True)


def setup(app):
    app.add_directive('extra-specs', ExtraSpecs)
    app.add_directive('host-traits', Traits)
    app.add_directive('host-speed-tiers', SpeedTiers)
    app.add_directive('host-stats', Stats)
    return {'parallel_read_safe': True, 'parallel_write_safe': True}
