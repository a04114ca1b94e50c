# SPDX-License-Identifier: Apache-2.0
"""Sphinx directives: the fields of a profile, and what they may be."""

import json
import sys

import described
import profile_limits

from nova_vqos.profile import fingerprint


class ProfileFields(described.Described):
    """The fields of one mapping in the profile, see doc/ext/described.py.

    Its argument is the path of the mapping, such as ``cpu_classes[].alone``;
    without one it is the document itself.
    """

    columns = ('Field', 'Must be', 'Meaning')
    widths = (22, 32, 46)
    optional_arguments = 1

    def facts(self):
        _, path = self.env.relfn2path('/reference/profile.yaml')
        self.env.note_dependency(path)
        with open(path, encoding='utf-8') as file:
            example = json.load(file)
        path = self.arguments[0] if self.arguments else ''
        return {name: (f'{must_be}{"; may be left out" if optional else ""}',)
                for name, must_be, optional in profile_limits.limits(
                    example, profile_limits.at(example, path))}


class FingerprintFields(described.Described):
    """The fields of a profile's fingerprint."""

    columns = ('Field', 'Meaning')
    widths = (30, 70)

    def facts(self):
        return dict.fromkeys(fingerprint.of_host(sys.executable), ())


def setup(app):
    app.add_directive('profile-fields', ProfileFields)
    app.add_directive('fingerprint-fields', FingerprintFields)
    return {'parallel_read_safe': True, 'parallel_write_safe': True}
