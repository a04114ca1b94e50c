# SPDX-License-Identifier: Apache-2.0
"""The files of one compute host: its profile, its agent's heartbeat."""

import datetime
import json
import os
import pathlib

import fixtures

from nova_vqos import cpuset
from nova_vqos.profile import document
from nova_vqos.quantum import occupancy
from nova_vqos.tests.fixtures import make_profiles

#: What every host of these tests says that it is, whatever runs them.
FINGERPRINT = {'cpu_model': 'a pCPU of the tests', 'tick_us': '4000'}

def make_profile(hostname, coefficients, *, fingerprint=None,
                 relative_width=0.01, **changes):
    """A profile as a calibration writes it.

    :param coefficients: {pCPUs as in 0-3: coefficient}; each may be one, or
        that of each kind of work by its name
    :param fingerprint: of what was measured; None: of the tests' hosts
    :param relative_width: of the confidence intervals
    """
    for coefficient in coefficients.values():
        if isinstance(coefficient, dict):
            changes['reference'] = make_profiles.make_kinds(coefficient)[1]
    return make_profiles.make_profile(
        hostname, *(
            make_profiles.make_class(cpuset.parse_pcpus(pcpus), coefficient)
            if isinstance(coefficient, dict) else
            make_profiles.make_class(cpuset.parse_pcpus(pcpus), coefficient,
                                     width=relative_width,
                                     samples=(coefficient * 1000.0,) * 3)
            for pcpus, coefficient in coefficients.items()),
        fingerprint=dict(FINGERPRINT if fingerprint is None
                         else fingerprint))._replace(**changes)


class HostFiles(fixtures.Fixture):
    """The files of a host, in a directory of its own.

    :ivar profile_path: where its profile is, or would be
    :ivar agent_state_path: path of its agent's heartbeat, written or not
    :ivar verification_path: where its last verification is, or would be
    :ivar compute_state_path: where its compute service's stats are
    """

    def __init__(self, hostname):
        super().__init__()
        self.hostname = hostname

    def setUp(self):
        super().setUp()
        self.directory = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.profile_path = str(self.directory / 'profile.yaml')
        self.agent_state_path = str(self.directory / 'agent.json')
        self.verification_path = str(self.directory / 'verification.json')
        self.compute_state_path = str(self.directory / 'vqos.json')

    def calibrate(self, coefficients, **kwargs):
        """Store a profile, see :func:`make_profile`."""
        document.store(make_profile(self.hostname, coefficients, **kwargs),
                       self.profile_path)

    def lose_profile(self):
        os.unlink(self.profile_path)

    def truncate_profile(self):
        os.truncate(self.profile_path, os.path.getsize(self.profile_path) // 2)

    def spoil_profile(self):
        pathlib.Path(self.profile_path).write_bytes(b'\x00\xff' * 1000)

    def open_profile_to_all(self):
        os.chmod(self.profile_path, 0o666)

    def agent_lives(self, age_s=0, classes=('default',),
                    dd_billing=('off',), quantum=occupancy.UNKNOWN,
                    guarantee_pcpus=None, guarantee_total_pcpus=None,
                    reserve_cu=None, keeps_ceilings=True):
        """The agent was last alive so many seconds ago.

        :param classes: quantum classes that it says the host enforces
        :param dd_billing: billings that it says the host does
        :param quantum: what it says the host's pools hold
        :param guarantee_pcpus: what it says can still be reserved
        :param guarantee_total_pcpus: the same, with what is reserved already
        :param reserve_cu: what it measured that the host needs
        :param keeps_ceilings: whether it is one that knows ceilings
        """
        seen_at = (datetime.datetime.now(datetime.UTC)
                   - datetime.timedelta(seconds=age_s))
        pathlib.Path(self.agent_state_path).write_text(json.dumps({
            'version': 1, 'pid': 1, 'host': self.hostname,
            'profile_id': '', 'seen_at': seen_at.isoformat(),
            'classes': list(classes), 'dd_billing': list(dd_billing),
            'quantum': quantum.to_state(),
            'guarantee_pcpus': guarantee_pcpus,
            'guarantee_total_pcpus': guarantee_total_pcpus,
            'reserve_cu': reserve_cu, 'keeps_ceilings': keeps_ceilings,
        }))

    def agent_was_never_there(self):
        os.unlink(self.agent_state_path)
