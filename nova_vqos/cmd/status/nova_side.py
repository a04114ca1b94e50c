# SPDX-License-Identifier: Apache-2.0
"""Imports our parts into the Nova of this environment: its own program.

``nova-vqos-status`` runs it in another process, since importing Nova takes
seconds, may change Python (eventlet), and may never end.
"""

import importlib.metadata
import json
import os
import sys


def driver() -> None:
    """Import the driver as Nova does.

    :raises Exception: of any kind, when that fails
    """
    from nova.virt import vqos
    vqos.VqosLibvirtDriver  # noqa: B018


def contract() -> None:
    """Compare Nova's libvirt driver with what ours builds upon.

    :raises Exception: of any kind, when they differ
    """
    from nova.virt.libvirt import driver as stock
    from nova.virt.libvirt import host

    from nova.virt import vqos
    from nova_vqos.virt import nova_contract
    difference = nova_contract.difference(
        vqos.VqosLibvirtDriver, stock.LibvirtDriver, host.Host)
    if difference:
        raise NotImplementedError(difference)


def scheduler() -> None:
    """Import what nova-scheduler imports.

    :raises Exception: of any kind, when that fails
    """
    from nova_vqos.scheduler import filter  # noqa: F401
    from nova_vqos.scheduler import weigher  # noqa: F401


def prefilter() -> None:
    """Find the list that our pre-filter is added to.

    :raises Exception: of any kind, when there is none
    """
    from nova_vqos.scheduler import prefilter
    if not prefilter.is_supported():
        raise NotImplementedError(
            'nova.scheduler.request_filter has no list ALL_REQUEST_FILTERS')


def validators() -> None:
    """Find ours among the validators of Nova's API.

    :raises Exception: of any kind, when that fails
    """
    # NOTE: nova-api has imported nova.exception by then.
    from nova.api.validation.extra_specs import validators as found
    import nova.exception  # noqa: F401

    from nova_vqos import policy
    if policy.UNITS_KEY not in found.VALIDATORS:
        raise LookupError(
            'Nova found no entry point vqos of nova.api.extra_spec_validators')


def main() -> None:
    """Print, as JSON, Nova's version and the error of each part."""
    # The answer is apart from all that Nova prints.
    answer, sys.stdout = sys.stdout, sys.stderr
    os.environ.setdefault('OS_NOVA_DISABLE_EVENTLET_PATCHING', '1')
    found = {'version': importlib.metadata.version('nova')}
    for part in driver, contract, scheduler, prefilter, validators:
        try:
            part()
            found[part.__name__] = ''
        except Exception as error:
            found[part.__name__] = f'{type(error).__name__}: {error}'
    json.dump(found, answer)


if __name__ == '__main__':
    main()
