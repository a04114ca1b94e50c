# SPDX-License-Identifier: Apache-2.0
"""Writes to libvirt by a process of root's, for an agent that is not root.

The agent reads by read-only connections, which libvirt grants to any user.
What it wants written it asks of nova-vqos-helper, by a socket that only the
agent's user can open. The helper can do what :class:`.writer.Writer` has, and
nothing else: an attacker in the agent cannot reach libvirt through it.
"""
