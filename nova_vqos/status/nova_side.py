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

"""What of ours the Nova of this environment imports: a program of its own.

``nova-vqos-status`` runs it in another process, since importing Nova takes
seconds, may change Python (eventlet), and may never end.
"""


import importlib.metadata
import json
import os
import sys


def driver() -> None:
    """Import the driver as Nova does.

    :raises Exception: whatever keeps it from that
    """
    from nova.virt import vqos
    vqos.VqosLibvirtDriver  # noqa: B018


def scheduler() -> None:
    """Import what nova-scheduler does.

    :raises Exception: whatever keeps it from that
    """
    from nova_vqos.scheduler import filter  # noqa: F401
    from nova_vqos.scheduler import weigher  # noqa: F401


def validators() -> None:
    """Look for ours among those that Nova's API finds.

    :raises Exception: whatever keeps it from that
    """
    # NOTE: nova-api has imported this by then, which the next one needs.
    from nova.api.validation.extra_specs import validators as found

    from nova import exception  # noqa: F401
    from nova_vqos import policy
    if policy.UNITS_KEY not in found.VALIDATORS:
        raise LookupError(
            'Nova found no entry point vqos of nova.api.extra_spec_validators')


def main() -> None:
    """Print, as JSON, Nova's version, and what was wrong with each part."""
    # Whatever Nova prints is no part of the answer.
    answer, sys.stdout = sys.stdout, sys.stderr
    os.environ.setdefault('OS_NOVA_DISABLE_EVENTLET_PATCHING', '1')
    found = {'version': importlib.metadata.version('nova')}
    for part in driver, scheduler, validators:
        try:
            part()
            found[part.__name__] = ''
        except Exception as error:
            found[part.__name__] = f'{type(error).__name__}: {error}'
    json.dump(found, answer)


if __name__ == '__main__':
    main()
