# SPDX-License-Identifier: Apache-2.0
"""What all levels of tests have in common."""

import pytest

from nova_vqos.tests.fixtures import requirement


def pytest_configure(config):
    config.addinivalue_line(
        'markers', "requires(lacking): skips where that is not ''")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    for mark in item.iter_markers('requires'):
        requirement.need(*mark.args)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport():
    report = requirement.judge((yield))
    # Tests of damaged text log what no encoding has, which xdist cannot send.
    report.sections = [
        (name, text.encode(errors='backslashreplace').decode())
        for name, text in report.sections]
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report():
    return requirement.judge((yield))
