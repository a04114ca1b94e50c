# SPDX-License-Identifier: Apache-2.0
"""Settings of the Horizon of test_horizon: Django's DJANGO_SETTINGS_MODULE."""

import os
import secrets

from openstack_dashboard.settings import *  # noqa: F403,H303

ALLOWED_HOSTS = ['*']
COMPRESS_OFFLINE = True
OPENSTACK_KEYSTONE_URL = os.environ['OS_AUTH_URL']
SECRET_KEY = secrets.token_hex()
STATIC_ROOT = os.environ['NOVA_VQOS_STATIC_ROOT']
# Without a memcached. Sessions end with the server.
CACHES = {'default': {
    'BACKEND': 'django.core.cache.backends.locmem.LocMemCache'}}
