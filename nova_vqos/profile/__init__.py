# SPDX-License-Identifier: Apache-2.0
"""The profile of a host: the result of its calibration.

libvirt's hook imports document, model and cpu. So these have named tuples
instead of dataclasses, and rare imports are late (tools/bench/hook.py).
"""
