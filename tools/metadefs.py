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

TARGET = (pathlib.Path(__file__).parent.parent / 'etc' / 'glance' / 'metadefs'
          / 'compute-vqos.json')
TITLES = {
    policy.UNITS_KEY: 'CPU units', policy.CAP_KEY: 'Time beyond the units',
    policy.QUANTUM_CLASS_KEY: 'Quantum class',
    policy.DD_BILLING_KEY: 'Billing of I/O',
    policy.GUARANTEE_KEY: 'Guarantee', policy.WORK_KEY: 'Kind of work',
}
_TYPES = {int: 'integer', str: 'string'}


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
            **({'enum': value['enum'], 'default': value['enum'][0]}
               if 'enum' in value else {}),
            **({'minimum': value['min'], 'maximum': value['max']}
               if 'min' in value else {}),
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
