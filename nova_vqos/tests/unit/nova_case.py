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

"""Nova's own base of unit tests, as pytest can run it."""

import nova.conf

from nova import test
from nova_vqos.conf import vqos as vqos_conf

CONF = nova.conf.CONF
# For flags(); filter and driver register them too, when they are made.
vqos_conf.register_opts(CONF)


class NovaTestCase(test.NoDBTestCase):

    def _clear_attrs(self):
        """Keep the attributes: pytest has one of its own to remove.

        Nova drops them so that they do not use memory until the end of its
        suite; pytest drops the whole test case.
        """
