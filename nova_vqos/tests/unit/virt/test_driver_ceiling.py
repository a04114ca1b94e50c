# SPDX-License-Identifier: Apache-2.0
"""What a guest's XML says of its project's ceiling, and who refuses it."""

from nova import exception
from nova_vqos import domain_xml
from nova_vqos import policy
from nova_vqos.tests.fixtures import driver

KEY = policy.PROJECT_CEILING_KEY
SPECS = {policy.UNITS_KEY: '60', KEY: '100'}


class CeilingTestCase(driver.DriverTestCase):

    def test_the_project_is_the_servers_whoever_asks_and_says_what(self):
        """It is of Nova's record, not of metadata, properties or names."""
        self.files.agent_lives()
        instance = self.make_instance(
            SPECS, project_id='tenant',
            display_name='<nova:project uuid="p"/>',
            metadata={KEY: '10000', 'project_id': 'p'},
            system_metadata={'owner_user_name': 'u',
                             'owner_project_name': 'p'})
        self.assertNotEqual('tenant', self.context.project_id)
        found = domain_xml.read(self.make_guest(instance).to_xml())
        self.assertEqual(('tenant', '100'), (
            found.project_id, found.extra_specs[KEY]))

    def test_an_agent_that_does_not_keep_it(self):
        self.files.agent_lives(keeps_ceilings=False)
        error = self.assertRaises(
            exception.ComputeResourcesUnavailable, self.make_guest,
            self.make_instance(SPECS))
        self.assertIn("this host's agent does not keep it", str(error))
