# SPDX-License-Identifier: Apache-2.0
"""The XML of domains, and short texts, that other hosts and programs write."""

import io
import pathlib
import xml.etree.ElementTree as etree

import pytest

from nova_vqos import cpuset
from nova_vqos import domain_xml
from nova_vqos import policy
from nova_vqos import utc
from nova_vqos import work
from nova_vqos.hooks import rewrite
from nova_vqos.profile import document
from nova_vqos.tests import fixtures
from nova_vqos.tests.fixtures import make_profiles
from nova_vqos.tests.unit.fuzz import damage

XML = (pathlib.Path(fixtures.__file__).parent
       / 'data/domain.xml').read_bytes()
_TUNE = {'shares': 77, 'period_us': 12_345, 'quota_us': 23_456}


def test_edits_change_what_they_say(fuzz):
    def edit(xml):
        try:
            before = domain_xml.read(xml)
        except domain_xml.DomainXmlError:
            return
        for edited in (
                domain_xml.without_own_pins, domain_xml.without_limits,
                lambda xml: domain_xml.with_cputune(xml, **_TUNE)):
            try:
                done = edited(xml)
            except domain_xml.DomainXmlError:
                continue
            assert edited(done) == done
            after = domain_xml.read(done)
            for field in 'uuid', 'name', 'vcpus', 'extra_specs':
                assert getattr(after, field) == getattr(before, field)
        try:
            etree.fromstring(xml)
        except etree.ParseError:
            # NOTE: it separates namespaces by a brace, and allows none there.
            return
        # As another parser has it.
        assert [etree.fromstring(done).findtext(f'cputune/{name}')
                for name in ('shares', 'period', 'quota')] == [
                    str(value) for value in _TUNE.values()]

    fuzz(damage.texts(XML), edit)


@pytest.mark.parametrize('on_error', ['pass', 'refuse'])
def test_the_hook(fuzz, monkeypatch, tmp_path, on_error):
    """A migration ends in one of two ways, and passes on all of the XML."""
    logged = []
    monkeypatch.setattr(rewrite, '_log', lambda *line, **_more: logged.append(
        line))
    profile, config = tmp_path / 'profile.yaml', tmp_path / 'hook.conf'
    document.store(make_profiles.make_profile(
        'h', make_profiles.make_class(range(8), 1.5),
        fingerprint={'tick_us': '4000'}), str(profile))
    config.write_text(f'[hook]\nprofile={profile}\non_error={on_error}\n')

    def run(xml):
        logged.clear()
        written = io.BytesIO()
        status = rewrite.run('n', io.BytesIO(xml), written, str(config), 10)
        if status == 0:
            assert logged or written.getvalue() == xml
        else:
            assert (status, on_error) == (1, 'refuse')
            assert written.getvalue() == b''

    fuzz(damage.texts(XML), run)


@pytest.mark.parametrize(('read', 'seed'), [
    (domain_xml.parse_cpuset, b'0-3,^2,8'), (cpuset.parse_pcpus, b'0-3,8'),
    (work.parse, b'integer:0.5,hash:0.5'),
    (utc.parse, b'2026-11-21T08:00:00+00:00')])
def test_short_texts(fuzz, read, seed):
    def parse(text):
        try:
            read(text.decode(errors='replace'))
        except ValueError:
            pass

    fuzz(damage.texts(seed), parse)


def test_extra_specs(fuzz):
    def parse(given):
        try:
            policy.ServerPolicy.from_dict(given)
        except policy.PolicyError:
            pass
        if not isinstance(given, dict):
            return
        specs = {key: value if isinstance(value, str) else repr(value)
                 for key, value in given.items()}
        try:
            found = policy.parse(specs, 2)
        except policy.PolicyError:
            found = None
        if found is not None:
            assert policy.ServerPolicy.from_dict(found.to_dict()) == found
        for key, value in given.items():
            try:
                policy.check_value(key, value)
            except policy.PolicyError:
                pass

    fuzz(damage.documents(
        policy.ServerPolicy(2, 60, 'floor', 'io', 'charge', 'required',
                            'hash').to_dict(),
        {policy.UNITS_KEY: '60', policy.CAP_KEY: 'hard',
         policy.QUANTUM_CLASS_KEY: 'auto', policy.DD_BILLING_KEY: 'charge',
         policy.GUARANTEE_KEY: 'preferred', policy.WORK_KEY: 'integer:1.5',
         f'resources1:{policy.RESOURCE_CLASS}': '1',
         'quota:cpu_quota': '1', 'hw:cpu_policy': 'shared'}), parse)
