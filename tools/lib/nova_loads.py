# SPDX-License-Identifier: Apache-2.0
"""Fails where Nova does not load its parts of nova_vqos."""

from nova.api.validation.extra_specs import validators
from nova.scheduler import filters
from nova.scheduler import weights
from oslo_utils import importutils

from nova import conf
from nova import exception
from nova.virt import driver

KEY = 'resources:CUSTOM_VQOS_CPU_UNIT'

conf.CONF([], project='nova', default_config_files=[])
shim = importutils.import_module('nova.virt.vqos.driver')
assert issubclass(shim.VqosLibvirtDriver, driver.ComputeDriver)
assert filters.HostFilterHandler().get_matching_classes(
    ['nova_vqos.scheduler.filter.VqosFilter'])
assert len(weights.HostWeightHandler().get_matching_classes(
    ['nova_vqos.scheduler.weigher.all_weighers'])) == 3
validators.load_validators()
validators.validate(KEY, '60')
try:
    # Nova's own validator takes it.
    validators.validate(KEY, '6_0')
except exception.ValidationError as error:
    assert KEY in str(error), error
else:
    raise AssertionError(f"{KEY}: '6_0' is valid")
