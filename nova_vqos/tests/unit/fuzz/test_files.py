# SPDX-License-Identifier: Apache-2.0
"""Files that calibrations, agents, probes, Nova's user and operators write."""

import json

import pytest

from nova_vqos import agent_state
from nova_vqos import compute_state
from nova_vqos import cputune
from nova_vqos import files
from nova_vqos import policy
from nova_vqos import units
from nova_vqos.agent.overrides import store
from nova_vqos.hooks import install
from nova_vqos.hooks import rewrite
from nova_vqos.profile import coefficients
from nova_vqos.profile import document
from nova_vqos.profile import io
from nova_vqos.profile import quantum
from nova_vqos.profile import validity
from nova_vqos.quantum import probe_result
from nova_vqos.quantum import recognition_trace
from nova_vqos.tests.fixtures import make_profiles
from nova_vqos.tests.unit.fuzz import damage

POLICY = policy.ServerPolicy(2, 60, quantum_class='cache', work='integer')
PROFILE = make_profiles.make_profile(
    'compute-1', make_profiles.make_class({0, 1}, 1.0, width=0.02),
    make_profiles.make_class({2, 3}, 2.0, width=0.02),
    fingerprint={'tick_us': '4000', 'cpu_model': 'any'},
    io=io.document(make_profiles.make_io()),
    quantum=quantum.document(make_profiles.make_quantum()))
_TRACE = (f'{{"nova_vqos_trace":{recognition_trace.VERSION}}}\n' + ''.join(
    json.dumps({'at_s': float(second), 'server': 's', 'vcpu': 0, 'thread': 5,
                'io_requests': 1.5, 'spin_events': None, 'references': 2.5,
                'misses': 1.0}) + '\n' for second in range(3))).encode()


@pytest.fixture
def path(tmp_path):
    """A file that others than root and its reader cannot write."""
    return tmp_path / 'file'


def test_a_profile(fuzz, monkeypatch):
    """With a wrong id, and with a right one, which any writer can compute."""
    def load(written):
        try:
            profile = document.loads(written)
            profile.io_profile  # noqa: B018
            profile.quantum_profile  # noqa: B018
        except files.FileError:
            return
        assert document.loads(document.dumps(profile)).id == profile.id
        for version in 1, 2:
            try:
                cputune.compute(POLICY, profile, profile.pcpus,
                                cgroup_version=version,
                                periods=cputune.DEFAULT_PERIODS)
            except (files.FileError, units.UnitsError):
                pass

    class AnyId(files.Fields):
        def text(self, key):
            return ANY if key == 'id' else super().text(key)

    class Any(str):
        __slots__ = ()

        def __ne__(self, other):
            return False

        __hash__ = str.__hash__

    ANY = Any()
    seed = json.loads(document.dumps(PROFILE))
    fuzz(damage.files(seed), load)
    monkeypatch.setattr(files, 'Fields', AnyId)
    fuzz(damage.files(seed), load)


def test_the_profile_as_the_hook_reads_it(fuzz, path):
    def load(written):
        path.write_bytes(written)
        try:
            found = coefficients.load(str(path))
        except files.FileError:
            return
        assert found.pcpus

    fuzz(damage.files(json.loads(document.dumps(PROFILE))), load)


def test_costs_of_io_and_slices(fuzz):
    def parse(given):
        for read, written in ((io.from_document, io.document),
                              (quantum.from_document, quantum.document)):
            try:
                found = read(given)
            except files.FileError:
                continue
            assert read(written(found)) == found

    fuzz(damage.documents(io.document(make_profiles.make_io()),
                          quantum.document(make_profiles.make_quantum())),
         parse)


def test_the_last_verification(fuzz, path):
    validity.store(str(path), 'p', validity.STALE, [
        {'pcpus': '0-3', 'drift': '-1.5%', 'verdict': validity.STALE}],
        [{'kind': 'hash', 'pcpus': '0-3', 'drift': '-4.0%',
          'verdict': validity.STALE}])

    def load(written):
        path.write_bytes(written)
        found = validity.load(str(path), 'p')
        assert found is None or found.verdict
        assert isinstance(validity.why_stale(str(path), 'p'), str)

    fuzz(damage.files(json.loads(path.read_text())), load)


def test_the_result_of_a_probe(fuzz, path):
    def load(written):
        path.write_bytes(written)
        found = probe_result.load(str(path))
        assert found is None or found.outcomes is not None

    fuzz(damage.files({
        'schema': probe_result.SCHEMA, 'kernel': '6.12',
        'boot_id': probe_result.boot_id('/'), 'tick_us': 4000,
        'measured_at': make_profiles.NOW, 'outcomes': {'cache': {
            'enforced': True, 'slice_us': 90_000, 'run_us': 90_100.0}}}), load)


def test_what_the_compute_service_reports(fuzz, path):
    def load(written):
        path.write_bytes(written)
        try:
            found = compute_state.load(str(path))
        except ValueError:
            return
        assert {type(one) for one in (
            *found.stats, *found.stats.values(), *found.moves.values(),
            *found.alarms)} <= {str}

    compute_state.Writer(str(path)).write(
        {'vqos_profile': 'valid'}, {'tick_us': 4000}, (1, 2), 3,
        {'uuid': 'reason'}, ('alarm',))
    fuzz(damage.files(json.loads(path.read_text())), load)


def test_the_heartbeat_of_an_agent(fuzz):
    def parse(written):
        try:
            found = agent_state.from_text(written.decode(errors='replace'))
        except files.FileInvalid:
            return
        assert set(found.dd_billing) <= set(
            policy.CHOICES[policy.DD_BILLING_KEY])
        assert set(found.quantum_classes) <= set(
            policy.CHOICES[policy.QUANTUM_CLASS_KEY])

    fuzz(damage.files({
        'version': 1, 'pid': 7, 'host': 'h', 'profile_id': 'p',
        'seen_at': make_profiles.NOW, 'classes': ['default', 'cache'],
        'quantum': {'pools': {'cache': [2, 3]}, 'polluters': 1},
        'dd_billing': ['off', 'charge'], 'guarantee_pcpus': 0.5,
        'guarantee_total_pcpus': 1.5, 'hypervisor_connected': True,
        'alarms': ['one']}), parse)


def test_pushes_that_were_kept(fuzz, path):
    def load(written):
        path.write_bytes(written)
        kept = store.OverrideStore(str(path))
        kept.load()
        assert all(one.name for one in kept.overrides.values())

    flavor = {'name': 'n', 'vcpus': 2, 'units': 60, 'quantum_class': 'io',
              'dd_billing': 'charge', 'guarantee': 'off'}
    fuzz(damage.files(
        # Of agents before RPC 1.6, and of today.
        {'schema': 1, 'flavors': {'f1': {**flavor, 'generation': 5}}},
        {'schema': store.SCHEMA, 'pushes': [
            {'generation': 5, 'full': True, 'flavors': {'f1': flavor},
             'signature': ''}]}), load)


def test_a_trace_of_recognition(fuzz):
    def read(written):
        try:
            for found in recognition_trace.readings(recognition_trace.read(
                    written.splitlines(keepends=True))):
                assert found
        except recognition_trace.TraceInvalid:
            pass

    fuzz(damage.texts(_TRACE), read)


def test_the_configuration_of_the_hook(fuzz, path):
    def load(written):
        path.write_bytes(written)
        settings = rewrite.load_settings(str(path))
        assert settings.on_error in {'pass', 'refuse'}
        try:
            rewrite.periods(settings)
        except (ValueError, rewrite.HookError):
            pass

    fuzz(damage.texts(
        b'[hook]\non_error = refuse\nprofile = /x\nperiod_us = 50000\n'
        b'cache_max_period_us = 900000\nquantum_slices = cache:90000\n'), load)


def test_the_hook_that_is_installed(fuzz):
    def parse(written):
        found = install.parse(written.decode(errors='replace'))
        assert found is None or isinstance(found.config, str)

    fuzz(damage.texts(install.script('/etc/hook.conf', [1000]).encode()),
         parse)
