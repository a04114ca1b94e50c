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


"""The host profile: what a host was calibrated to be.

Imported by libvirt's hook, hence named tuples here, no dataclasses, and rare
imports are late (tools/bench/hook.py). What others need of it is named here,
and where it is made does not matter to them.
"""

from nova_vqos.profile.document import DEFAULT_PATH
from nova_vqos.profile.document import dumps
from nova_vqos.profile.document import load
from nova_vqos.profile.document import loads
from nova_vqos.profile.document import store
from nova_vqos.profile.errors import ProfileError
from nova_vqos.profile.errors import ProfileInvalid
from nova_vqos.profile.errors import ProfileMissing
from nova_vqos.profile.errors import ProfileUnsafe
from nova_vqos.profile.fields import Fields
from nova_vqos.profile.files import MAX_FILE_BYTES
from nova_vqos.profile.files import read
from nova_vqos.profile.files import write
from nova_vqos.profile.measurement import CpuClass
from nova_vqos.profile.measurement import Measurement
from nova_vqos.profile.measurement import Score
from nova_vqos.profile.measurement import interval
from nova_vqos.profile.model import Profile
from nova_vqos.profile.pcpus import format_pcpus
from nova_vqos.profile.pcpus import parse_pcpus
from nova_vqos.profile.reference import MAX_WEIGHT
from nova_vqos.profile.reference import Benchmark
from nova_vqos.profile.reference import Reference
from nova_vqos.profile.reference import reference_document
from nova_vqos.profile.reference import reference_of
from nova_vqos.profile.staleness import staleness

__all__ = [
    'DEFAULT_PATH', 'MAX_FILE_BYTES', 'MAX_WEIGHT', 'Benchmark', 'CpuClass',
    'Fields', 'Measurement', 'Profile', 'ProfileError', 'ProfileInvalid',
    'ProfileMissing', 'ProfileUnsafe', 'Reference', 'Score', 'dumps',
    'format_pcpus', 'interval', 'load', 'loads', 'parse_pcpus', 'read',
    'reference_document', 'reference_of', 'staleness', 'store', 'write',
]
