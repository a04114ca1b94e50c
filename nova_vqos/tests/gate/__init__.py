# SPDX-License-Identifier: Apache-2.0
"""How levels of tests are run, judged, and chosen: see testing.rst."""
