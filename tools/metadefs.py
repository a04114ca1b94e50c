#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""Makes Glance's definitions of our extra specs, which Horizon shows, below
etc/glance/metadefs; run it after each change of the validators.

Names, texts and values are the validators': nothing is said twice.
"""

import json
import pathlib
import re
import typing as ty

from nova_vqos import policy
from nova_vqos import validators
from nova_vqos import work

TARGET = (pathlib.Path(__file__).parent.parent / 'etc' / 'glance' / 'metadefs'
          / 'compute-vqos.json')
TITLES = {
    policy.UNITS_KEY: 'CPU units', policy.CAP_KEY: 'Time beyond the units',
    policy.QUANTUM_CLASS_KEY: 'Quantum class',
    policy.DD_BILLING_KEY: 'Billing of I/O',
    policy.GUARANTEE_KEY: 'Guarantee', policy.WORK_KEY: 'Kind of work',
    policy.PROJECT_CEILING_KEY: 'Ceiling of a project',
    policy.BURST_KEY: 'Units while it bursts',
    policy.BURST_SECONDS_KEY: 'Seconds of a full balance',
}
_TYPES = {int: 'integer', str: 'string'}
# NOTE: Horizon proposes the default, and then insists on a value. Of a text
# without one, left empty, it saves the word null.
_DEFAULTS = {**{key: choices[0] for key, choices in policy.CHOICES.items()},
             policy.WORK_KEY: work.AUTO}
# Of a value, as Nova's validators and as Glance call it.
_LIMITS = {'enum': 'enum', 'min': 'minimum', 'max': 'maximum',
           'pattern': 'pattern'}


def definitions() -> dict[str, ty.Any]:
    """:returns: the namespace, as glance-manage loads it"""
    found = {}
    for one in validators.register():
        if one.name not in TITLES:
            continue
        value = one.value
        found[one.name] = {
            'title': TITLES[one.name],
            # Horizon shows it as it is.
            'description': re.sub('``', '', one.description),
            'type': _TYPES[value['type']],
            **{ours: value[name] for name, ours in _LIMITS.items()
               if name in value},
            **({'default': _DEFAULTS[one.name]}
               if one.name in _DEFAULTS else {}),
        }
    return {
        'namespace': 'OS::Compute::Vqos',
        'display_name': 'CPU units',
        'description': 'The speed of a server in units of a reference CPU, '
                       'the same on each host, and what belongs to it.',
        'visibility': 'public',
        'protected': True,
        'resource_type_associations': [{'name': 'OS::Nova::Flavor'}],
        'properties': found,
    }


def text() -> str:
    """:returns: the file"""
    return json.dumps(definitions(), indent=4) + '\n'


if __name__ == '__main__':
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(text(), encoding='utf-8')
