# SPDX-License-Identifier: Apache-2.0
"""Driver, hook and agent give a server the same cap."""

import io
import itertools
import pathlib

from nova_vqos import policy
from nova_vqos.agent import charging
from nova_vqos.agent import controller
from nova_vqos.agent.caps import desired
from nova_vqos.conf import vqos
from nova_vqos.hooks import rewrite
from nova_vqos.profile import document
from nova_vqos.tests.fixtures import driver as driver_case
from nova_vqos.tests.unit import test_domain_xml
from nova_vqos.virt import driver

PCPUS = frozenset({0, 1})
# What an operator may set, of which hook.conf has to say the same.
OPTIONS = (
    {},
    {'period_us': '20000'},
    {'cache_max_period_us': '1000000'},
    {'cache_max_period_us': '100000', 'quantum_slices': 'cache:30000'},
    {'period_us': '100000', 'quantum_slices': 'io:2000,cache:100000',
     'cache_max_period_us': '700000'},
)
VCPUS = 2
KINDS = {'integer': 1.9, 'hash': 0.77}


class SameCapTestCase(driver_case.DriverTestCase):

    def setUp(self):
        super().setUp()
        self.files.agent_lives(classes=policy.CHOICES[
            policy.QUANTUM_CLASS_KEY], dd_billing=policy.CHOICES[
                policy.DD_BILLING_KEY])

    def cap_of_driver(self, extra_specs):
        return self.cputune(extra_specs, VCPUS)[:2]

    def cap_of_agent(self, extra_specs, *, limit_share=None):
        terms = controller.HostTerms(
            profile=document.load(self.files.profile_path), cgroup_version=1,
            periods=vqos.periods(driver.CONF), charges=True)
        tune = desired.entitlement(policy.parse(extra_specs, VCPUS), VCPUS,
                                   PCPUS, terms)
        if limit_share is not None:
            tune = charging.DOMAIN_QUOTA.quotas(tune, VCPUS, limit_share,
                                                terms)
        return tuple(tune.cap)

    def cap_of_hook(self, extra_specs, options):
        config = pathlib.Path(self.files.directory, 'hook.conf')
        config.write_text('[hook]\n' + ''.join(
            f'{name} = {value}\n' for name, value in (
                options | {'profile': self.files.profile_path}).items()))
        specs = ''.join(f'<n:extraSpec name="{key}">{value}</n:extraSpec>'
                        for key, value in extra_specs.items())
        target = io.BytesIO()
        self.assertEqual(0, rewrite.run(
            'server', io.BytesIO(test_domain_xml.domain(
                metadata=test_domain_xml.FLAVOR.format(specs),
                vcpu="<vcpu cpuset='0-1'>2</vcpu>")), target, str(config), 10))
        tuned = test_domain_xml.tuning(target.getvalue())
        return int(tuned['quota']), int(tuned['period'])

    def test_for_all_classes_and_options(self):
        self.stub_out('nova_vqos.hooks.rewrite._log',
                      lambda *_args, **_options: None)
        caps = set()
        for options in OPTIONS:
            for name in ('period_us', 'cache_max_period_us', 'quantum_slices'):
                driver.CONF.clear_override(name, 'vqos')
            self.flags(group='vqos', **options)
            for cu, coefficient, quantum_class, billing in itertools.product(
                    ('3', '61', '117', '180', '200'), (1.0, 1.37, KINDS),
                    ('default', 'cache', 'auto'), ('off', 'charge')):
                self.files.calibrate({'0-1': coefficient})
                extra_specs = {policy.UNITS_KEY: cu,
                               policy.QUANTUM_CLASS_KEY: quantum_class,
                               policy.DD_BILLING_KEY: billing}
                if coefficient is KINDS:
                    extra_specs[policy.WORK_KEY] = 'integer:1,hash:0.5'
                cap = self.cap_of_driver(extra_specs)
                self.assertEqual(cap, self.cap_of_agent(extra_specs))
                self.assertEqual(cap, self.cap_of_hook(extra_specs, options))
                # As long as it owes nothing.
                self.assertEqual(cap, self.cap_of_agent(extra_specs,
                                                        limit_share=1.0))
                caps.add((quantum_class, cap[1]))
        # What is compared differs by class, and by option.
        self.assertGreater(len({period for name, period in caps
                                if name == 'cache'}), 5)
