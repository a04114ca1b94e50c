# SPDX-License-Identifier: Apache-2.0
"""What agents answer over RPC: the fields of each answer, and their types.

:class:`~nova_vqos.agent.manager.AgentManager` makes them, everybody else
reads them by :func:`nova_vqos.primitives.parse`. A field with a default may
be missing: an agent of another version does not know it. Texts in
``..._at`` are times, ISO 8601, UTC.
"""
