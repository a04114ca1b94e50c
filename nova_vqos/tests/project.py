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

"""Files of the project that are no Python, wherever the tests run from."""

import importlib.metadata
import pathlib

import pytest

TOP = pathlib.Path(__file__).parents[2]
IS_CHECKOUT = (TOP / 'setup.cfg').exists()

needs_checkout = pytest.mark.skipif(
    not IS_CHECKOUT, reason='this is no checkout, and it is not installed')


def sample(name):
    """The path of a sample: of the checkout, or as it was installed.

    :param name: path below the top of the checkout
    """
    if IS_CHECKOUT:
        return TOP / name
    # A wheel puts these where no system reads them by itself.
    installed = name
    for source in 'systemd', 'prometheus', 'grafana':
        installed = installed.replace(f'etc/{source}/', 'share/nova-vqos/')
    (found,) = [file for file in importlib.metadata.files('nova_vqos')
                if str(file).endswith(installed)]
    return pathlib.Path(found.locate())
