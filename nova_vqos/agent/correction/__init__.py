# SPDX-License-Identifier: Apache-2.0
"""Corrects the units of servers with ``vqos:work=auto``.

The agent counts the instructions that a server's guest executes in each CPU
second. The ratio of these on two hosts is the ratio of the hosts' speeds for
this server: its programs execute the same instructions on both, since the CPU
that the guest sees is the same. What was measured on several hosts gives the
server's own coefficient: see :mod:`nova_vqos.learning`.
"""
