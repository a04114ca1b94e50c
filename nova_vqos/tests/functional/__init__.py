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

"""Functional tests: Nova's own services and Placement in one process.

NOTE: Nova decides between eventlet and threads, by this variable, when
nova.tests.functional is imported, which has to come before all else of Nova.
Computes of Nova 34 run threaded; those of Nova 33 on eventlet, and threaded
where their operator says so: as here, by the variable.
"""

import importlib.metadata
import os

from oslo_utils import strutils

_VARIABLE = 'OS_NOVA_DISABLE_EVENTLET_PATCHING'

NOVA = int(importlib.metadata.version('nova').split('.')[0])
THREADED = strutils.bool_from_string(
    os.environ.setdefault(_VARIABLE, str(NOVA >= 34)))
# Of oslotest: a test that hangs fails, with its log.
os.environ.setdefault('OS_TEST_TIMEOUT', '500')

import nova.tests.functional  # noqa: E402,F401
