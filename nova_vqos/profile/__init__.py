# SPDX-License-Identifier: Apache-2.0
"""The profile of a host: the result of its calibration.

libvirt's hook imports coefficients, and the others only where a profile is new
to it. So document, model and cpu have named tuples instead of dataclasses, and
rare imports are late (tools/bench/hook.py).
"""
