# SPDX-License-Identifier: Apache-2.0
"""The version of this package, as it was installed."""

from importlib import metadata


def version() -> str:
    """Such as 0.1.0; ``unknown`` when run from an uninstalled tree."""
    try:
        return metadata.version('nova_vqos')
    except metadata.PackageNotFoundError:
        return 'unknown'
