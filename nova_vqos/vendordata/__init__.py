# SPDX-License-Identifier: Apache-2.0
"""Figures for guests: what a tenant reads of his own server.

Nova's metadata service asks (DynamicJSON, see nova.api.metadata), for a server
whose guest reads its vendordata; an agent answers.
"""
