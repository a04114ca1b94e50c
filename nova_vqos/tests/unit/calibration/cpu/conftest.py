# SPDX-License-Identifier: Apache-2.0
"""A host of pCPUs 0, 1 and 9, measured by scores that are known before."""

from nova_vqos.tests.fixtures import calibration_host

calibrate = calibration_host.calibrate
program = calibration_host.program
sysroot = calibration_host.sysroot
