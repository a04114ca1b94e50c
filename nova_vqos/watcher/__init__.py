# SPDX-License-Identifier: Apache-2.0
"""A strategy for Watcher, OpenStack's optimizer, that levels CPU units.

Only :mod:`nova_vqos.watcher.strategy` imports Watcher, which nova_vqos does
not require.
"""
